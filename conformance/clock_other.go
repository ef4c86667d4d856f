//go:build !linux

package conformance

import "time"

// now reads the wall clock, which all processes of the machine share. A clock that
// is set while a case runs can spoil it.
func now() time.Duration { return time.Duration(time.Now().UnixNano()) }
