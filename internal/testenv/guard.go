package testenv

import (
	"io"
	"os/exec"
	"strconv"
)

// guard is a process that kills others when this process ends. A server's process
// dies with this one, and its children end when they miss it; but not while they are
// paused.
type guard struct {
	cmd  *exec.Cmd
	hold io.Closer // the guard reads from it, and wakes when nobody can write any more
}

func startGuard(pids []int) (*guard, error) {
	args := []string{"-c", `trap '' HUP INT TERM; read -r _; kill -KILL "$@"`, "guard"}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	cmd := exec.Command("sh", args...)
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &guard{cmd, hold}, nil
}

// end ends the guard, without harm to those it guards.
func (g *guard) end() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait() // it was killed
	_ = g.hold.Close()
}
