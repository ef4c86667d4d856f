package suspend

import (
	"time"

	"golang.org/x/sys/unix"
)

// Total returns how long the machine has been suspended since it started. Go's monotonic clock is CLOCK_MONOTONIC, which stands still meanwhile, while a
// store's leases run on; CLOCK_BOOTTIME counts it (clock_gettime(2)).
//
// The two are not read at one instant, and a thread that is stopped in between would look
// like a machine that was. So one clock is read on both sides of the other, again if need be.
func Total() time.Duration {
	const most = 10
	slept, within := sleepSeen()
	for n := 1; n < most && within >= Jitter; n++ {
		if s, w := sleepSeen(); w < within {
			slept, within = s, w
		}
	}
	return slept
}

// sleepSeen is the machine's sleep by one look at the clocks: too little by within at most.
func sleepSeen() (slept, within time.Duration) {
	before, boot, after := clock(unix.CLOCK_MONOTONIC), clock(unix.CLOCK_BOOTTIME), clock(unix.CLOCK_MONOTONIC)
	return boot - after, after - before
}

// clock reads one of the clocks that Linux has had for longer than Go needs it.
func clock(id int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t)
	return time.Duration(t.Nano())
}
