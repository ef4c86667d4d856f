//go:build unix

package testenv

import (
	"os/exec"
	"syscall"
)

// run has cmd run by the account.
func (a *account) run(cmd *exec.Cmd) {
	if a != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
	}
}
