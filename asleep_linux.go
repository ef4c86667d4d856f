package locker

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineSleep returns how long the machine has been suspended since it started.
// Go's monotonic clock is CLOCK_MONOTONIC, which stands still meanwhile, while a
// store's leases run on; CLOCK_BOOTTIME counts it (clock_gettime(2)).
func machineSleep() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil ||
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}
