//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// withoutTerminal starts cmd as cron does, whoever runs the tests.
func withoutTerminal(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
