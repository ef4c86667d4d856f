//go:build unix && !linux

package main

import "syscall"

// dieWithParent does nothing: only Linux can.
func dieWithParent(*syscall.SysProcAttr) {}
