//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passedSignals go to the command; while there is none, they end the wait for it.
var passedSignals = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// terminal is where the command's signals come from and go to.
//
// Without a controlling terminal (cron, systemd, CI) the command leads a process group
// of its own, and what ends it ends the processes that it has started. With one it stays
// in our group: the shell moves that between foreground and background as a whole, and
// a group that it does not know could not read from the terminal.
type terminal struct {
	fd          int
	shared      bool // the group
	interrupted bool // SIGINT ended the command, most likely a Ctrl-C
}

func (p *process) attributes() *syscall.SysProcAttr {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	p.fd, p.shared = fd, err == nil
	attr := &syscall.SysProcAttr{Setpgid: !p.shared}
	dieWithParent(attr)
	return attr
}

// pass hands a signal on, except for one that the terminal has sent to the command too.
// An INT or QUIT sent to this process alone cannot be told from that; without a terminal,
// or in the background, there is no doubt.
func (p *process) pass(s os.Signal) {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT:
		if p.shared && p.inForeground() {
			return
		}
		p.signalAll(s.(syscall.Signal))
	case syscall.SIGUSR1, syscall.SIGUSR2:
		// A message for the command, and the end of a child that does not expect it.
		_ = p.cmd.Process.Signal(s)
	default:
		p.signalAll(s.(syscall.Signal))
	}
}

func (p *process) inForeground() bool {
	group, err := unix.IoctlGetInt(p.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (p *process) terminate() {
	p.signalAll(syscall.SIGTERM)
	p.signalAll(syscall.SIGCONT) // one that is stopped does not see the other
}

func (p *process) kill() { p.signalAll(syscall.SIGKILL) }

// signalAll signals the command, and its group if it has one. The group's number stays
// its own after the command has ended, as long as it has members.
func (p *process) signalAll(s syscall.Signal) {
	if p.shared {
		_ = p.cmd.Process.Signal(s)
		return
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, s)
}

// endSignal is the signal that ended the command, or 0.
func (p *process) endSignal() syscall.Signal {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return 0
	}
	p.interrupted = p.shared && status.Signal() == syscall.SIGINT
	return status.Signal()
}

// dieOfInterrupt ends this process as Ctrl-C does.
func dieOfInterrupt() {
	signal.Reset(syscall.SIGINT)
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	time.Sleep(time.Second) // it comes to any thread, at any time
}
