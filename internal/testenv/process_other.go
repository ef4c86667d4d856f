//go:build !linux

package testenv

import "os/exec"

// dieWithParent does nothing: only Linux has such a signal.
func dieWithParent(*exec.Cmd) {}
