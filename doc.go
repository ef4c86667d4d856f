// Package locker takes distributed locks: one [Locker] interface over several stores,
// of which Redis (SET NX PX) is the primary one, and one public suite, in package
// conformance, that tests them all.
//
//	l, err := redislock.New(rdb, nil) // or memlock.New, or locker.Open(ctx, url)
//	…
//	err = locker.Do(ctx, l, "daily-report", func(ctx context.Context, k locker.Lock) error {
//		return writeReport(ctx, k.Token()) // ctx ends if the lock is lost
//	})
//
//	k, err := l.TryAcquire(ctx, "daily-report") // does not wait
//	if errors.Is(err, locker.ErrHeld) {
//		return nil // somebody else is at it: err says who
//	}
//	if err != nil {
//		return err // the store failed, or the call was wrong
//	}
//	defer k.Release(ctx) // works after ctx was cancelled, too
//
// Applications need [Locker], [Lock], [Do], the options and the errors; the rest is for
// those who write a backend.
//
// # What is guaranteed
//
// At most one live lock on a key, among goroutines, processes and machines that use
// one store, for as long as the store keeps its own promises. A lock is renewed until
// it is released. It counts as lost, with [Lock.Done] closed and [Lock.Err] set,
// before the store can give the key to somebody else, even if the network hangs: the
// deadline is counted on the monotonic clock from before the last successful request
// was sent, with a margin. Every grant has a fresh owner id and a fencing token that
// is larger than all earlier ones of its key. What fails half-way is undone. Waiters
// are woken by push, and take over a crashed holder's key when its lease ends.
//
// Callers of one Locker that wait for a key stand in one line, in the order of their
// calls, and cost the store what one waiter costs.
//
// # What is not guaranteed
//
// A lock cannot stop a process that does not look: one that is paused between a check
// of [Lock.Err] and the write that follows it wakes up without the lock. Where two
// writers would do damage, the resource itself has to compare [Lock.Token] with the
// largest it has seen, and refuse a smaller one. A lock is not once-only either: a job
// that must run once per round needs a durable mark of the finished round, looked at
// under the lock (examples/dailyreport).
//
// A holder that hangs, or forgets to release, is renewed as long as its process lives:
// [WithMaxHold] bounds that, and [Do] cannot forget. An Acquire waits out an outage, too,
// as long as its context lets it.
//
// The clocks of the store and of this process may run at different speeds only as far
// as the margin allows: 5 % of short leases, 250 ms of long ones. Stores that lose
// data lose locks: see each backend's package for its own limits. Among processes, no
// order of waiters is promised unless the backend declares [CapFIFO]. Locks are not
// re-entrant.
//
// # Errors
//
// [ErrHeld], with [HeldError]: somebody has the key. [ErrLost], with [LostError]: this
// grant ended without a release. [ErrReleased], [ErrClosed], [ErrInvalid],
// [ErrUnsupported]: as they say. If your context ended, the error matches it, and
// ErrHeld too if somebody had the key until then. Everything else is an [Error] around
// the driver's own error: the store did not do its part, which never means that the key
// is held.
//
// # Hooks
//
// [Config.Observer] is told of waiting, grants, renewals, losses and releases, and of
// settings of the store that endanger locks: see [Event]. Nothing in this module logs.
//
// # Writing a backend
//
// Implement [Backend], whose contract stands on the interface, pass it to [New], and
// run package conformance on it.
package locker
