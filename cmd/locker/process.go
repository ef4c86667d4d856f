package main

import (
	"cmp"
	"errors"
	"log"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/go-locker/locker"
)

// process is the command that runs under the lock.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	terminal
}

// newProcess looks the command up, so that one that is not there is no reason to wait
// for a lock.
func newProcess(argv []string) (*process, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, cannotRun(err)
	}
	cmd := &exec.Cmd{Path: path, Args: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	return &process{cmd: cmd, exited: make(chan struct{})}, nil
}

func (p *process) setenv(vars ...string) { p.cmd.Env = append(os.Environ(), vars...) }

var errNotRenewed = errors.New("the lock could not be renewed, and the command had to end before the lease does")

// run starts the command and blocks until it has ended. It passes signals on, and ends
// the command when the lock is lost, or about to be: lost says so then, and err is how
// the command ended.
//
// The command has to be gone at the lock's Deadline. A lease that cannot be renewed
// therefore ends it a grace earlier: SIGTERM then, and SIGKILL at the Deadline. A lock
// that was taken away has no time left; the grace is then what is risked for an orderly
// end.
func (p *process) run(k locker.Lock, grace time.Duration, signals <-chan os.Signal, log *log.Logger) (lost, err error) {
	if err := p.start(); err != nil {
		return nil, cannotRun(err)
	}
	expiring := time.NewTimer(time.Until(k.Deadline()) - grace)
	defer expiring.Stop()
	done := k.Done()
	var kill <-chan time.Time
	for {
		select {
		case <-p.exited:
			if lost != nil {
				p.kill() // what it has started
			}
			return lost, p.outcome()
		case s := <-signals:
			p.pass(s)
		case <-kill:
			p.kill()
		case <-expiring.C:
			if left := time.Until(k.Deadline()) - grace; left > 0 {
				expiring.Reset(left)
				continue
			}
			lost = cmp.Or(lost, errNotRenewed)
		case <-done:
			lost, done = k.Err(), nil
		}
		if lost != nil && kill == nil {
			log.Printf("ending the command: %s", oneLine(lost))
			p.terminate()
			kill = time.After(grace)
		}
	}
}

// start starts the command. What Linux takes for its parent is the thread that forked:
// a goroutine keeps it until the command has ended.
func (p *process) start() error {
	p.cmd.SysProcAttr = p.attributes()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // outcome tells
			close(p.exited)
		}
	}()
	return <-started
}

// outcome is how the command ended.
func (p *process) outcome() error {
	if s := p.endSignal(); s != 0 {
		return signalled(s)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}
