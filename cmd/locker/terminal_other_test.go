//go:build !unix

package main

import "os/exec"

func withoutTerminal(*exec.Cmd) {}

func killAll(cmd *exec.Cmd) error { return cmd.Process.Kill() }
