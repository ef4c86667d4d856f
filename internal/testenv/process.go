package testenv

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// process is a child that was started, until it was reaped. Its methods are not for
// concurrent use.
type process struct {
	cmd    *exec.Cmd
	family bool          // its children are paused, resumed and killed with it
	guard  *guard        // while a family is paused
	exited chan struct{} // closed once the child was reaped
}

// startProcess starts cmd, and sees to it that the child dies with this process
// where the system can do that.
func startProcess(cmd *exec.Cmd, family bool) (*process, error) {
	dieWithParent(cmd)
	p := &process{cmd: cmd, family: family, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// What Linux takes for the parent is the thread that forked. It has to
		// live as long as the child, so this goroutine keeps it for itself.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the status of a server that is being killed tells nothing
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill ends the child at once, paused or not, and waits for that.
func (p *process) kill() error {
	var err error
	if p.family && p.running() {
		err = p.killChildren()
	}
	if kill := p.cmd.Process.Kill(); kill != nil && !errors.Is(kill, os.ErrProcessDone) {
		return errors.Join(err, kill)
	}
	<-p.exited
	return err
}

// stop asks the child to end, by a signal, and kills it if it has not after grace.
func (p *process) stop(ask os.Signal, grace time.Duration) error {
	if p.cmd.Process.Signal(ask) == nil {
		_ = p.resume() // a paused child does not see the request
		select {
		case <-p.exited:
			return nil
		case <-time.After(grace):
		}
	}
	return p.kill()
}
