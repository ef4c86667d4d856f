//go:build !linux

package conformance

import "time"

// machineClock is the wall clock, which all processes of the machine share. A clock that
// is set while a case runs can spoil it.
func machineClock() time.Duration { return time.Duration(time.Now().UnixNano()) }
