//go:build !unix

package conformance

import (
	"errors"
	"os"
)

const canStop = false

func stopProcess(*os.Process) error   { return errors.ErrUnsupported }
func resumeProcess(*os.Process) error { return errors.ErrUnsupported }
