package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"github.com/go-locker/locker"
)

// The exit codes. Those from 64 on are sysexits.h's, those from 126 on the shell's.
const (
	exitHeld        = 1  // run: the key is held; -E changes it
	exitFree        = 1  // who, release: the key is free
	exitChanged     = 2  // release: the holder changed meanwhile
	exitBroken      = 1  // conformance: a rule is broken
	exitNotTested   = 2  // conformance: nothing can be said
	exitUsage       = 64 // EX_USAGE
	exitUnavailable = 69 // EX_UNAVAILABLE: the store
	exitLost        = 75 // EX_TEMPFAIL: the lock was lost, while the command ran or before it could

	exitCannotRun = 126
	exitNotFound  = 127
	exitSignal    = 128 // plus the signal's number
)

// exitError is an error that knows its exit code. Without err there is nothing to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// signalled is the shell's word for what a signal ended.
func signalled(s os.Signal) error {
	n, _ := s.(syscall.Signal)
	return &exitError{code: exitSignal + int(n)}
}

// cannotRun is the shell's word for a command that did not start.
func cannotRun(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitCannotRun, err}
}

// codeOf is the exit code for an error of a Locker, before a command runs.
func codeOf(err error) int {
	if errors.Is(err, locker.ErrInvalid) || errors.Is(err, locker.ErrUnsupported) {
		return exitUsage
	}
	return exitUnavailable
}
