package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
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
		id, state, parent := readStat(stat)
		if parent != strconv.Itoa(pid) || hasEnded(state) {
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

// readStat reads a process's stat, or a thread's. One that has ended has none.
func readStat(path string) (id, state, parent string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "X", ""
	}
	// 123 (name, with anything in it) state parent …
	id, _, _ = strings.Cut(string(text), " ")
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return id, fields[0], fields[1]
}

func hasEnded(state string) bool { return state == "Z" || state == "X" }

// awaitStop waits until all threads of a process that SIGSTOP was sent to stand still: on a
// busy machine they may run on for some time.
func awaitStop(pid int) error {
	for late := time.Now().Add(stopGrace); ; time.Sleep(100 * time.Microsecond) {
		threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(threads, func(stat string) bool {
			_, state, _ := readStat(stat)
			return state != "T" && state != "t" && !hasEnded(state)
		}) {
			return nil
		}
		if time.Now().After(late) {
			return errors.New("testenv: a process goes on in spite of SIGSTOP")
		}
	}
}
