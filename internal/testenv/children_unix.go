//go:build unix && !linux

package testenv

import (
	"fmt"
	"os/exec"
	"strings"
)

// childrenOf are the living children of a process. Untested: no such machine was at
// hand.
func childrenOf(pid int) ([]int, error) {
	table, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=").Output()
	if err != nil {
		return nil, err
	}
	var children []int
	for line := range strings.Lines(string(table)) {
		var child, parent int
		var state string
		if _, err := fmt.Sscan(line, &child, &parent, &state); err != nil {
			return nil, err
		}
		if parent == pid && !strings.HasPrefix(state, "Z") {
			children = append(children, child)
		}
	}
	return children, nil
}

// awaitStop trusts in SIGSTOP.
func awaitStop(int) error { return nil }
