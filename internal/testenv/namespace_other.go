//go:build !linux

package testenv

import "os/exec"

func ownNetwork(*exec.Cmd) {}

func inNetworkOf(int, func() error) error { return ErrNoNamespace }
