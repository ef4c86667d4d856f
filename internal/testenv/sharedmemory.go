//go:build linux || (darwin && !ios)

package testenv

import (
	"errors"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes a System V segment that may be gone already.
func removeSharedMemory(id int) error {
	_, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIDRM) {
		return nil
	}
	return err
}
