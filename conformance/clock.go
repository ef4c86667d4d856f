package conformance

import "time"

// clock tells the time to everybody who takes part in something.
type clock func() time.Duration

// ownClock is for those in one process.
func ownClock() clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) + time.Nanosecond } // never 0
}

// of is at by the clock: not earlier than that, so that who is alive after it is late,
// and a tenth of a millisecond later at the most.
func (now clock) of(at time.Time) time.Duration {
	for {
		before := now()
		left := time.Until(at)
		// A process that was stopped between two readings tries again.
		if after := now(); after-before < time.Millisecond/10 {
			return after + left
		}
	}
}
