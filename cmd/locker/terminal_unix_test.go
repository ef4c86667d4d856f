//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// withoutTerminal starts cmd as cron does, whoever runs the tests.
func withoutTerminal(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// killAll ends it, and what it has started in its own process group. On Linux locker
// takes its command with it.
func killAll(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
