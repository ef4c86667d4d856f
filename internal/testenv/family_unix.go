//go:build unix

package testenv

import (
	"errors"
	"os"
	"syscall"
	"time"
)

func (p *process) pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := awaitStop(p.pid()); err != nil || !p.family {
		return err
	}
	// Stopped, it has no further children.
	children, err := childrenOf(p.pid())
	if err != nil {
		return err
	}
	if p.guard == nil {
		if p.guard, err = startGuard(append(children, p.pid())); err != nil {
			return err
		}
	}
	err = signalAll(children, syscall.SIGSTOP)
	for _, child := range children {
		err = errors.Join(err, awaitStop(child))
	}
	return err
}

func (p *process) resume() error {
	if p.family {
		children, err := childrenOf(p.pid())
		if err := errors.Join(err, signalAll(children, syscall.SIGCONT)); err != nil {
			return err
		}
		p.endGuard()
	}
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

// killChildren kills the children of a process, which it leaves stopped, and waits
// until they are gone.
func (p *process) killChildren() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	p.endGuard()
	gone := time.Now().Add(stopGrace)
	for {
		// The dead among them are not listed, though nobody reaps them now.
		children, err := childrenOf(p.pid())
		if err != nil || len(children) == 0 {
			return err
		}
		if err := signalAll(children, syscall.SIGKILL); err != nil {
			return err
		}
		if time.Now().After(gone) {
			return errors.New("testenv: a server's children do not die")
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *process) endGuard() {
	if p.guard != nil {
		p.guard.end()
		p.guard = nil
	}
}

// signalAll sends a signal to processes, of which some may have ended.
func signalAll(pids []int, sig syscall.Signal) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
