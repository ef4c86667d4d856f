package testenv

// Ended is where a goroutine is that has run to its end, and that a busy machine has not yet
// come to clear away: to goleak.IgnoreTopFunction it is no leak.
const Ended = "runtime.goexit1"
