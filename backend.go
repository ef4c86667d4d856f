package locker

import (
	"context"
	"strings"
	"time"
)

// Backend is what an implementer of a store writes: single attempts, and nothing
// else. Waiting, local queueing, renewal, deadlines, loss, undo and hooks are
// done by the Locker that New builds around it.
//
// A Backend must
//   - be safe for concurrent use;
//   - act atomically in the store: taking a key and minting its token is one
//     step, and so is comparing the owner and renewing or deleting;
//   - give up soon after a call's ctx has ended. It may return late if its driver
//     cannot be interrupted: the Locker does not wait for it then.
//
// It may implement the optional interfaces of this file: Waker, Queuer, Extender,
// BatchRenewer, LossPusher, Warner, Inspector and Closer. Those that stand for a
// Capability have to be declared in Info, and the other way round; New refuses a
// mismatch, so that a wrapper around a Backend cannot lose one silently.
//
// It never waits for a key to become free, never renews by itself, starts no
// goroutine per lock, keeps no ctx beyond the call it came with, and never closes
// a client that was passed in.
type Backend interface {
	// Info describes the backend. It is constant and does no I/O.
	Info() Info

	// TryAcquire makes one attempt to take req.Key. The Locker has validated and
	// rounded the request. It returns
	//   - a Grant and nil: the store confirmed it;
	//   - nil and a *HeldError: the store says that somebody else has the key;
	//     nothing was taken;
	//   - nil and another error: nothing was taken (refused, never sent);
	//   - a Grant and an error: the outcome is unknown (time-out, reset, lost
	//     reply; also a *HeldError, if an earlier sending may yet arrive). The
	//     Locker undoes it with Grant.Release, which must therefore be
	//     owner-guarded.
	//
	// If the store already shows req.Owner under the key, an earlier sending of
	// this very command succeeded, and the attempt has too. An error that
	// waiting does not cure is marked with Permanent.
	//
	// The Locker may abandon a call whose ctx ended, and then releases what the
	// call still returns.
	TryAcquire(ctx context.Context, req Request) (Grant, error)
}

// Grant is one successful attempt. Its methods act on this grant only, by its
// owner id: never on whoever holds the key now. They are safe for concurrent use,
// because an abandoned renewal may still be in flight when the next one or the
// release is sent.
type Grant interface {
	// Token is the fencing token, larger than every earlier token of the key.
	// Zero if the backend does not declare CapToken.
	Token() uint64

	// Lease is the life the store gave at the time of the grant.
	Lease() Lease

	// Renew sets the remaining life to ttl, unless the store has more already: a
	// renewal never shortens. It never re-creates the key. "Not yours" is a
	// *LostError with its reason; any other error leaves open what happened. The
	// answer is returned and not stored in the grant, so that the Locker can
	// ignore one that comes too late.
	Renew(ctx context.Context, ttl time.Duration) (Lease, error)

	// Release gives the key back. Nil: it was this grant's and is free now. "Not
	// yours" is a *LostError; any other error leaves open what happened, unless it
	// is marked with NoEffect. The
	// driver must not repeat it behind the caller's back, because the repetition
	// of a release that succeeded finds the key gone; the Locker repeats it and
	// knows that it did.
	Release(ctx context.Context) error
}

// Lease is a span of life in the store.
type Lease struct {
	// TTL is the whole life, as the store counts it. Zero: as requested.
	TTL time.Duration

	// Since is the instant the life is counted from, with Go's monotonic
	// reading: taken before the request that last refreshed it was sent. Zero
	// means just before the TryAcquire, Claim, Renew or Extend that brought it.
	Since time.Time
}

// Request is one attempt to take a key.
type Request struct {
	Key   string
	Owner string // fresh for each attempt's grant: a UUID
	Label string // free text for operators, may be empty
	TTL   time.Duration
	Mode  Mode // a backend returns ErrUnsupported for a mode it lacks
	Limit int  // permits, for ModeLimited
}

// Holder is the value by which a store shows the holder: the owner id, and the
// label behind a space if there is one. Owner ids contain no space.
func (r Request) Holder() string {
	if r.Label == "" {
		return r.Owner
	}
	return r.Owner + " " + r.Label
}

// Mode is the kind of lock a Request asks for.
type Mode uint8

// The modes. Locker offers ModeExclusive; the others are reserved, and a Backend
// has to refuse the ones it does not know.
const (
	ModeExclusive Mode = iota // one holder
	ModeShared                // many readers
	ModeLimited               // at most Request.Limit holders
)

// Info describes a Backend.
type Info struct {
	// Name appears in errors and events: "redis", "memory", ….
	Name string

	// Can is what the backend promises.
	Can Capability

	// Unit is the granularity of the store's leases; a TTL is rounded up to a
	// multiple of it. MinTTL is the shortest lease the store grants; a shorter
	// TTL is rounded up to it. Zero stands for a nanosecond.
	Unit, MinTTL time.Duration

	// Local says that the store lives in this process: calls do not block, so
	// the Locker makes them on the caller's goroutine, and leases run on Go's
	// monotonic clock, so a suspended machine's sleep is not counted.
	Local bool

	// Deadlines says that every call returns soon after the deadline of its ctx,
	// even if nothing else ends it. The Locker then makes calls for a context that
	// cannot be cancelled on the caller's goroutine, instead of on one that it can
	// leave behind.
	Deadlines bool

	// Multiplexed says that one session or lease of the store carries several grants,
	// so that the store does not end a single one by itself as long as the others keep
	// it alive. The Locker then gives back every grant that has ended, and repeats that
	// until it has a definite answer, be it that of a release, of an undo, of a lock
	// that was left to expire, or of WithMaxHold. It stops at nil, a *LostError or a
	// permanent error, when a LossPusher says ReasonSession about the grant, and with
	// Close. A grant whose session is over answers Release with a *LostError. A store in
	// this process (Local) has no such sessions.
	Multiplexed bool
}

// Capability is a set of promises.
type Capability uint32

// The capabilities. Every Backend declares those it has; New checks them against
// the optional interfaces, and the conformance suite runs the cases that need
// them.
const (
	CapExclusive  Capability = 1 << iota // at most one exclusive holder
	CapToken                             // fencing tokens, rising per key
	CapClockToken                        // tokens come from the server's clock alone
	CapHolder                            // HeldError tells holder and remaining time
	CapWakeUp                            // a release wakes waiters: Waker or Queuer
	CapFIFO                              // waiters are served in order: Queuer
	CapPushLoss                          // losses are pushed: LossPusher
	CapExtend                            // the lease can be set anew: Extender
	CapExpiry                            // the store ends a lease by itself
	CapInterop                           // plain tools can take part
	CapShared                            // ModeShared
	CapLimited                           // ModeLimited
	CapInspect                           // a key can be looked at: Inspector

	// CapSessionHolder qualifies CapHolder and CapInspect: what they show and end is a
	// session of the store, which may hold several keys, and not the grant. The
	// backend's HeldError and Holding name the session, in the store's words, and
	// neither owner nor label.
	// ForceRelease ends it, and with it every lock that it holds (ReasonSession). List
	// may name keys as the store knows them, such as by number.
	CapSessionHolder

	// CapSessionPerLock says that each lock takes a session of the store, and with it a
	// connection and a goroutine that listens to it: it is no promise, but its absence is.
	CapSessionPerLock

	// CapLeasedPlace qualifies CapFIFO: a place in the store's line is the grant-to-be. Its
	// token is minted when the waiter gets in line, and it lives as long as its lease, so a
	// waiter that is gone costs that. Without it a turn is a short reservation. It is no
	// promise, but its absence is.
	CapLeasedPlace
)

var capabilityNames = []string{
	"exclusive", "token", "clock token", "holder", "wake-up", "FIFO", "push loss",
	"extend", "expiry", "interop", "shared", "limited", "inspect", "session holder", "session per lock", "leased place",
}

// Has reports whether all of want is in c.
func (c Capability) Has(want Capability) bool { return c&want == want }

// String lists the names of the capabilities in c.
func (c Capability) String() string {
	var names []string
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Waker is implemented by backends whose store can tell that a key became free.
type Waker interface {
	// Watch starts listening for key. When it returns nil, no release that
	// happens from then on goes unnoticed by the Watch. It may block until the
	// store confirmed, and ends with ctx. An error costs the caller nothing but
	// the push: the Locker falls back on the holder's remaining time.
	Watch(ctx context.Context, key string) (Watch, error)
}

// Watch is one key's wake-ups. A wake-up is a hint, never a grant.
type Watch interface {
	// C carries a value when the key may have become free, or when a release may
	// have been missed (a connection was lost and is back). Wake-ups that come
	// faster than they are read are merged.
	C() <-chan struct{}

	// Close stops listening. It does not block on the network. C is not closed.
	Close()
}

// Queuer is implemented by backends whose store keeps the waiters in order.
type Queuer interface {
	// Enqueue puts a waiter at the end of the key's line. The request's owner
	// identifies it. It blocks for one request and ends with ctx. After an error
	// nothing stands in the line, or only until the store finds the waiter dead.
	Enqueue(ctx context.Context, req Request) (Place, error)
}

// Place is a waiter's place in a store's line.
type Place interface {
	// Turn carries a value when the turn may have come.
	Turn() <-chan struct{}

	// Claim takes the key, with the rules of Backend.TryAcquire. The token is
	// minted and the TTL starts here: a turn is a short reservation, not a grant.
	// A *HeldError means that it is not this place's turn. If the place was
	// dropped because its reservation ran out, Claim has put it at the end again.
	Claim(ctx context.Context) (Grant, error)

	// Leave gives the place up, and passes on a turn that had come already. It
	// is called until it returns nil or five seconds have passed, with
	// Info.Multiplexed until it returns nil, and also after a successful Claim:
	// then it does nothing.
	Leave(ctx context.Context) error
}

// Extender is implemented by backends that can set a lease to any length.
type Extender interface {
	// Extend sets the remaining life of the grant to ttl, longer or shorter,
	// with the rules of Grant.Renew otherwise.
	Extend(ctx context.Context, g Grant, ttl time.Duration) (Lease, error)
}

// BatchRenewer is implemented by backends that renew many grants at once.
type BatchRenewer interface {
	// RenewAll renews each of renewals as Grant.Renew does, and calls answer
	// exactly once for each, as soon as its outcome is known and from any
	// goroutine; one slow grant must not delay the answers of the others more
	// than the store makes it. It returns when all are answered.
	RenewAll(ctx context.Context, renewals []Renewal, answer func(i int, lease Lease, err error))
}

// Renewal is one grant's part of a batch.
type Renewal struct {
	Grant Grant
	TTL   time.Duration
}

// LossPusher is implemented by backends that hear of a loss by themselves: a
// session that died, an entry that was removed.
type LossPusher interface {
	// OnLoss registers the one receiver. New calls it before anything else.
	// report does not block and may be called from any goroutine, also before
	// TryAcquire has returned the grant; a report about a grant that is no longer
	// held is ignored. err is a *LostError with its reason.
	OnLoss(report func(key, owner string, err error))
}

// Warner is implemented by backends that can find out that their store is set up so
// that it may break its promises: it forgets, it evicts.
type Warner interface {
	// OnWarning registers the one receiver, an EventWarning for each err. New calls
	// it before anything else, if there is an Observer: without the call nobody
	// wants to know. report does not block and may be called from any goroutine.
	// Finding out must not delay a lock, nor make one fail.
	OnWarning(report func(err error))

	// AwaitWarnings waits until what is being found out has been reported, or ctx
	// ends. It begins nothing. The Locker's Close calls it, so that a program that
	// ends soon is warned too; what is reported after its return is dropped.
	AwaitWarnings(ctx context.Context)
}

// Inspector is implemented by backends that can show keys to an operator. The
// Locker that New returns implements it too, and passes it through.
type Inspector interface {
	// Inspect shows the holder of key; a zero Holding means that it is free. It is
	// one request, bounded by ctx as far as the driver goes, and changes nothing.
	Inspect(ctx context.Context, key string) (Holding, error)

	// ForceRelease frees key if holder is still what the store shows for it, and
	// reports whether it did. It is one request, bounded by ctx; after an error it
	// may have been done. The grant that this breaks is lost: its holder hears of
	// it by push, or at the next renewal, and not before. With CapSessionHolder it
	// ends the session that holds key, and breaks every grant on it.
	ForceRelease(ctx context.Context, key, holder string) (bool, error)

	// List calls yield for every held key, named as for Inspect (but see
	// CapSessionHolder), in any order, until yield returns false: the error is nil
	// then, as it is after the last key. yield runs on the caller's goroutine, while
	// List holds no mutex, and may use the Locker.
	//
	// It is not a snapshot. A key that one grant holds from the beginning to the end
	// is shown, by some stores more than once. One that is taken or freed meanwhile
	// may be missing, or be free by now. What is no lock, but looks like one in the
	// store, is shown too.
	//
	// It changes nothing and blocks for as many requests as it takes; the end of ctx
	// stops it before the next one. Its memory does not grow with the number of keys.
	List(ctx context.Context, yield func(key string, h Holding) bool) error
}

// Holding is what a store shows of a held key.
type Holding struct {
	Holder    string        // as in HeldError
	Remaining time.Duration // as in HeldError
	Token     uint64        // zero where the store does not show it
}

// Closer is implemented by backends with resources of their own. The Locker calls it
// last, once, with five seconds to go. Its error becomes that of Locker.Close.
type Closer interface {
	Close(ctx context.Context) error
}
