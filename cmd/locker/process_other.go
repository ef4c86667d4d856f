//go:build !unix

package main

import (
	"os"
	"syscall"
)

var passedSignals = []os.Signal{os.Interrupt}

// terminal has nothing to tell: a console sends its Ctrl-C to the command too.
type terminal struct{ interrupted bool }

func (p *process) attributes() *syscall.SysProcAttr { return nil }

func (p *process) pass(os.Signal) {}

// terminate ends the command at once: there is no signal to ask it.
func (p *process) terminate() { p.kill() }

func (p *process) kill() { _ = p.cmd.Process.Kill() }

func (p *process) endSignal() syscall.Signal { return 0 }

func dieOfInterrupt() {}
