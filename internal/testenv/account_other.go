//go:build !unix

package testenv

import "os/exec"

// run does nothing: only Unix has a root.
func (a *account) run(*exec.Cmd) {}
