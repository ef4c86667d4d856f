package main

import "syscall"

// dieWithParent has the command killed when this process is: it must not run on
// without a lock, and nobody would be left to end it by force later.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
