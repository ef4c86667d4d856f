package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownNetwork gives cmd a network of its own when it starts.
func ownNetwork(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
}

// inNetworkOf calls do on a thread in the network of a process.
func inNetworkOf(pid int, do func() error) error {
	result := make(chan error)
	go func() { result <- switched(pid, do) }()
	return <-result
}

// switched leaves a thread that it cannot bring back locked to its goroutine, with
// which it ends. The others live on: to the processes that were started on them they
// are the parent.
func switched(pid int, do func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	theirs, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer theirs.Close()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = do()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}
