package testenv

import "go.uber.org/goleak"

// Leaving are the goroutines that goleak may find after tests on these servers, and that end
// by themselves.
var Leaving = []goleak.Option{
	// One that has run to its end, and that a busy machine has not yet come to clear away.
	goleak.IgnoreTopFunction("runtime.goexit1"),

	// A closed client of Redis that could not dial sleeps for a second before it sees that.
	goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
}
