//go:build unix

package testenv

import "syscall"

func (p *process) pause() error     { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error    { return p.cmd.Process.Signal(syscall.SIGCONT) }
func (p *process) terminate() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
