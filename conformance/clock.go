package conformance

import "time"

// clock tells the time to everybody who takes part in something.
type clock func() time.Duration

// ownClock is for those in one process.
func ownClock() clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) + time.Nanosecond } // never 0
}

// of is at by the clock.
func (now clock) of(at time.Time) time.Duration {
	for {
		before := now()
		left := time.Until(at)
		// A process that was stopped between two readings tries again.
		if now()-before < time.Millisecond {
			return before + left
		}
	}
}
