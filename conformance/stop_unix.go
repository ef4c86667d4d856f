//go:build unix

package conformance

import (
	"os"
	"syscall"
)

const canStop = true

func stopProcess(p *os.Process) error   { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
