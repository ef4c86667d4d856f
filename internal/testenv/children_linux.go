package testenv

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// childrenOf are the living children of a process. The kernel's own list of them is
// not in every kernel, and not complete while one of them ends.
func childrenOf(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// 123 (name, with anything in it) state parent …
		id, _, _ := strings.Cut(string(text), " ")
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[1] != strconv.Itoa(pid) || slices.Contains([]string{"Z", "X"}, fields[0]) {
			continue
		}
		child, err := strconv.Atoi(id)
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	return children, nil
}
