package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// readyTimeout bounds a start, or a wait, whose ctx does not.
	readyTimeout = 30 * time.Second

	// stopGrace is what a server gets to end when it is asked to.
	stopGrace = 5 * time.Second

	logName = "server.log"
)

// program is what servers of one kind have in common.
type program struct {
	name   string
	ready  []string  // each, in the log, says that the port is bound and the data loaded
	finish os.Signal // asks for an orderly end, for a Restart
	quit   os.Signal // asks for an end with nothing left outside of the directory
	family bool      // it works through children
}

// server is one server of any kind. It is safe for concurrent use.
type server struct {
	addr     string
	dir      string // empty for a server that was given
	program  program
	cmd      []string // how to start it, there
	env      []string // what its environment has besides this process'
	as       *account // who runs it
	answers  func(context.Context) error
	leftover func() error // removes what a killed one leaves outside of dir; may be nil

	mu   sync.Mutex
	proc *process // the last one started, nil after Stop
}

// Addr is the server's host:port. It stays the same over Restart.
func (s *server) Addr() string { return s.addr }

// PID is the server's process id, or 0 if it does not run or was given.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || !s.proc.running() {
		return 0
	}
	return s.proc.pid()
}

// Pause stops the server in its tracks (SIGSTOP): connections stay, and take what
// is sent, but nothing is answered. Where there is no such signal the error
// matches errors.ErrUnsupported.
func (s *server) Pause() error { return s.signal((*process).pause) }

// Resume ends a Pause (SIGCONT).
func (s *server) Resume() error { return s.signal((*process).resume) }

func (s *server) signal(send func(*process) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if !s.proc.running() {
		return ErrNotRunning
	}
	return send(s.proc)
}

// Kill ends the server at once (SIGKILL), paused or not, and returns when it is
// gone. Restart brings it back. Killing a dead server is no error.
func (s *server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	return s.proc.kill()
}

// Restart starts the server again, with the same port, directory and settings,
// after Kill or after ending it in an orderly way, and waits until it answers. ctx
// bounds the start.
func (s *server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.proc.stop(s.program.finish, stopGrace); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Stop ends the server and removes its directory. It asks first and kills after
// 5 s. A second Stop does nothing, nor does that of a server that was given.
func (s *server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	err := s.proc.stop(s.program.quit, stopGrace)
	s.proc = nil
	return errors.Join(err, s.clear())
}

// usable says why the server's process is out of reach. It is called with mu.
func (s *server) usable() error {
	switch {
	case s.dir == "":
		return ErrNotOurs
	case s.proc == nil:
		return ErrNotRunning
	}
	return nil
}

// start chooses a free port, has the server configured for it and starts it, until
// it has a port that nobody else took in between. On an error nothing is left.
func (s *server) start(ctx context.Context, configure func(port int) error) error {
	err := errPortTaken
	for try := 0; try < portTries && errors.Is(err, errPortTaken); try++ {
		var port int
		if port, err = freePort(); err != nil {
			break
		}
		s.addr = local(port)
		if err = configure(port); err == nil {
			err = s.launch(ctx)
		}
	}
	if err != nil {
		return errors.Join(err, s.clear())
	}
	return nil
}

// clear removes all that the server, which has ended, has left.
func (s *server) clear() error {
	var err error
	if s.leftover != nil {
		err = s.leftover()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// launch starts the process and waits until it answers. On an error no process is
// left.
func (s *server) launch(ctx context.Context) error {
	proc, err := s.spawn(s.cmd, s.program.family)
	if err != nil {
		return err
	}
	s.proc = proc
	if err := s.awaitReady(ctx, proc); err != nil {
		return errors.Join(fmt.Errorf("testenv: %s did not start: %w", s.program.name, err), proc.kill())
	}
	return nil
}

// spawn starts a program in the server's directory and for its account. What it
// says is the log from now on.
func (s *server) spawn(command []string, family bool) (*process, error) {
	log, err := os.Create(filepath.Join(s.dir, logName))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = s.dir
	// What it says is read here: in English.
	cmd.Env = slices.Concat(os.Environ(), []string{"LC_ALL=C"}, s.env)
	cmd.Stdout, cmd.Stderr = log, log
	s.as.run(cmd)
	return startProcess(cmd, family)
}

// awaitReady waits until the server says in its log that it has bound the port and
// loaded its data, and then answers. The log is its own: an answer alone could come
// from another server that took the port first.
func (s *server) awaitReady(ctx context.Context, proc *process) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			log := s.log()
			if slices.ContainsFunc(s.program.ready, func(mark string) bool { return strings.Contains(log, mark) }) {
				return s.answers(ctx)
			}
		case <-ctx.Done():
			return fmt.Errorf("%w; it said:\n%s", context.Cause(ctx), s.log())
		case <-proc.exited:
			log := s.log()
			if strings.Contains(strings.ToLower(log), "address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("it ended and said:\n%s", log)
		}
	}
}

// log is what the server's last process has said.
func (s *server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, logName))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
