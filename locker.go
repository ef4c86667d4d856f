package locker

import (
	"context"
	"time"
)

// Locker hands out locks on keys. It is the one interface that applications hold.
// Backends' packages return one (redislock.New, memlock.New), New builds one around
// a Backend, and Open chooses one by URL. It is safe for concurrent use.
//
// A key is any non-empty valid UTF-8 string of at most 512 bytes without NUL. It is
// taken exactly, and no key meets another one. A bad key, TTL or label is ErrInvalid
// before anything is sent.
type Locker interface {
	// Acquire takes key, waiting until it is free. Only ctx bounds the wait, and
	// it bounds nothing else: not the hold, not the renewal, not the release.
	//
	// It blocks until the store granted the key, ctx ended, the Locker was closed
	// (ErrClosed), or the store gave an error that waiting does not cure (no
	// permission). Errors that pass (refused connections, a server that is
	// loading) are waited out with back-off. Callers of one Locker that wait for
	// one key are served in the order of their calls; among different processes
	// the store decides.
	//
	// When ctx ended, the error matches ctx.Err() and context.Cause(ctx). It also
	// matches ErrHeld if and only if the last definite answer was that somebody
	// held the key, and the driver's last error if there was one. Whenever there
	// is an error, nothing stays taken: an attempt whose outcome is unknown is
	// undone in the background, and the TTL is the last resort.
	//
	// A lock is not re-entrant: a second Acquire by its holder waits.
	Acquire(ctx context.Context, key string, opts ...Option) (Lock, error)

	// TryAcquire makes one attempt and does not wait for the key: a *HeldError
	// says who has it. It blocks for one request, bounded by ctx. If other
	// goroutines of this Locker are at the key already, it does not overtake
	// them: it gets the answer that the first of them gets, or waits for their
	// release under way, and sends nothing. A grant that arrives when its lease
	// is over is ErrLost. Errors are otherwise as for Acquire, but ErrHeld does
	// not wait for ctx to end.
	TryAcquire(ctx context.Context, key string, opts ...Option) (Lock, error)

	// Close ends the Locker. New acquires and waiting ones get ErrClosed. Done of
	// every live lock is closed with ErrLost, and Close waits for their holders'
	// Release until ctx ends (an already ended ctx counts as no wait) or the leases
	// do; then it
	// releases the rest itself, for which it takes at most 5 s more, and closes the
	// backend, for which that has as long again. The client that was passed to the
	// backend's constructor is not closed. The error tells what could not be given
	// back; the TTL will. A second Close waits for the first one, or for its own
	// ctx, and returns its error. Close must not be called from the Observer: it
	// would wait for itself. If there is an Observer, and the backend is just looking
	// at how its store is set up, Close waits for what comes of it, until ctx ends and
	// for half a second at most.
	Close(ctx context.Context) error
}

// Lock is one grant of a key: it is held from the return of Acquire until Release
// is called or it is lost, and never again after that. It is safe for concurrent
// use. It may gain methods: a fake should embed Lock.
//
// A Lock tells the truth as far as this process can know it. Between a look at Err
// and the write that follows it, a process can be paused for any length of time;
// where that matters, the resource has to check Token.
type Lock interface {
	// Key is the key as given.
	Key() string

	// Owner is this grant's id, a UUID; the store shows it, if it shows more than
	// its own sessions (CapSessionHolder).
	Owner() string

	// Token is the fencing token: larger than that of every earlier grant of the
	// key. A resource that remembers the largest token it has seen, and refuses
	// smaller ones, is safe from a holder that was paused past its lease.
	Token() uint64

	// TTL is the lease as granted by the store, or as set by Extend.
	TTL() time.Duration

	// Deadline is the instant by which the work has to stop unless the lease is
	// renewed before: counted from before the request that last set the lease was
	// sent, on the monotonic clock, minus a margin of TTL/20 (at least 5 ms, at
	// most 250 ms, never more than TTL/4).
	Deadline() time.Time

	// Done is closed when the lock is released or lost, no later than Deadline
	// even if the network hangs. After a suspend of the whole machine it is
	// closed within a second of the resume; Err is right at once.
	Done() <-chan struct{}

	// Err is nil while the lock is held, ErrReleased after Release was called, or
	// matches ErrLost, with the reason (see LostError). It compares the clock when
	// called, so it is right at the first call after a pause of the process.
	Err() error

	// Extend sets the lease to ttl from now on, for this and all later renewals.
	// It may shorten it: the shorter one then counts locally from before the
	// request is sent, whatever the answer, and if there is no answer, for the
	// rest of the grant. Extend blocks for one request, bounded by ctx. It returns
	// the lock's Err if that is not nil, ErrInvalid for a TTL out of bounds, and
	// ErrUnsupported where the backend cannot do it. After any other error the
	// store may have the new lease or the old one; Deadline is right for both.
	Extend(ctx context.Context, ttl time.Duration) error

	// Release gives the key back. From the call on the lock counts as released
	// (Done is closed, renewal has stopped), whatever the answer.
	//
	// It is nil once the store confirmed, and nil again when called again. It
	// matches ErrLost if the lock had been lost, at once and without waiting, and if
	// its session of the store ended before that could confirm (ReasonSession). The
	// work runs detached from ctx for at most 5 s, repeating attempts that fail;
	// the caller waits for it until ctx ends, so that a deferred Release(ctx) works
	// after ctx was cancelled (an already ended ctx counts as none). Any other
	// error says that the store may go on showing the lock until its TTL; a second
	// Release tries again. Where one session of the store carries many locks
	// (Info.Multiplexed), no TTL ends a single one: the Locker itself goes on trying,
	// until it has an answer or is closed.
	Release(ctx context.Context) error
}
