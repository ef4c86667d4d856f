package conformance

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineClock is a clock that all processes of the machine share, and that nobody sets.
// Go's own monotonic readings mean nothing to another process.
func machineClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(ts.Nano())
}
