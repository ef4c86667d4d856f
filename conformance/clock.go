package conformance

import "time"

// onClock is at by the clock of now.
func onClock(at time.Time) time.Duration {
	for {
		before := now()
		left := time.Until(at)
		// A process that was stopped between two readings tries again.
		if now()-before < time.Millisecond {
			return before + left
		}
	}
}
