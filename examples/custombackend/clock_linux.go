package custombackend

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machineTime is the clock of the leases: the same for all processes, not set by
// anybody, and running while the machine sleeps.
func machineTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano()), err
}

// bootID tells the machine's runs apart, in each of which that clock begins anew.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
