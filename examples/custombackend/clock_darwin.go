package custombackend

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineTime is the clock of the leases: the same for all processes, not set by
// anybody, and, other than Linux' clock of that name, running while the machine sleeps.
func machineTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano()), err
}

// bootID tells the machine's runs apart, in each of which that clock begins anew.
func bootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }
