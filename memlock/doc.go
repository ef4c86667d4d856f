// Package memlock keeps locks in the memory of this process: for programs that have
// one process, for tests, and as the measure of what the other backends have to do.
//
//	store := memlock.NewStore()
//	l, err := memlock.New(store, nil)
//	…
//	k, err := l.Acquire(ctx, "daily-report")
//	if err != nil {
//		return err
//	}
//	defer k.Release(ctx)
//
// Or by URL, with this package imported for its side effect: locker.Open(ctx,
// "mem://"). All that is opened so in one process shares one store. The one parameter
// is ttl.
//
// # What is guaranteed
//
// All of package locker's contract, among the Lockers of one [Store]. Locks have
// leases, as in a remote store: a holder that never releases and is not renewed loses
// the key at the end of its TTL, so that a program tested on memory does not meet
// expiry in production for the first time. Waiters are served in the order of their
// calls, across Lockers: a turn that is not claimed within a second is passed on. A
// forced release is noticed at once. Nothing is kept of a key that nobody holds or
// waits for. Tokens come from one counter per Store that starts at the wall clock's
// microseconds.
//
// # What is not guaranteed
//
// Anything beyond this process, or beyond its end. Leases run on Go's monotonic clock,
// which stands still while the machine is suspended; so do their holders.
//
// # Errors and hooks
//
// As in package locker; there are no errors of its own.
package memlock
