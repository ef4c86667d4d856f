package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

const (
	// prompt bounds everything that has to come without waiting for a lease. It
	// is generous, because a machine can be busy; it never decides about safety.
	prompt = 5 * time.Second

	// long is a lease that outlives every case, and whose third does, at which a
	// waiter may look again: what comes promptly while it is held was pushed.
	long = time.Minute
)

// trial is one run of one case: what the case may use, and what it found.
type trial struct {
	ctx   context.Context // ends with the case
	suite *suite
	ttl   time.Duration
	name  string // unique; every key of the case begins with it

	keys    atomic.Int64 // made so far
	running sync.WaitGroup

	opening  sync.Mutex
	observer locker.Locker // see bystander

	// Of the case's own goroutine.
	serverPaused, serverDown, serverCutOff bool

	mu       sync.Mutex
	lockers  []locker.Locker
	children []*child
	networks []*faultnet.Network
	failures []Failure
	figures  []Figure
	broken   error
}

// close ends what the case opened and started.
func (t *trial) close() {
	t.mu.Lock()
	lockers, children, networks := t.lockers, t.children, t.networks
	t.mu.Unlock()
	t.mendServer()
	for _, n := range networks {
		// What a fault has held up can come to its end.
		n.Set(faultnet.None)
	}
	for _, c := range children {
		c.end()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, l := range lockers {
			closeNow(t.ctx, l)
		}
		t.running.Wait()
	}()
	if !within(done, 2*prompt) {
		t.fail("closing the case's Lockers has not ended; goroutines:\n"+stacks(), "an end")
	}
	for _, n := range networks {
		n.Close()
	}
}

// key returns a key that nobody else uses.
func (t *trial) key() string { return t.named(fmt.Sprintf("key-%d", t.keys.Add(1))) }

// named returns a key of this trial that ends in text.
func (t *trial) named(text string) string { return t.name + "/" + text }

// can reports whether the Locker declares c.
func (t *trial) can(c locker.Capability) bool { return t.suite.info.Can.Has(c) }

// onConnections reports whether a lock may stand and fall with a connection: the
// backend hears of losses, and its store shows nothing but a session, if that much.
func (t *trial) onConnections() bool {
	return t.can(locker.CapPushLoss) && (!t.can(locker.CapHolder) || t.can(locker.CapSessionHolder))
}

// orSession adds the reason of a lock that has gone down with its session.
func (t *trial) orSession(reasons ...locker.Reason) []locker.Reason {
	if t.onConnections() {
		reasons = append(reasons, locker.ReasonSession)
	}
	return reasons
}

// unit is how exactly the store tells what remains of a lease: it may round.
func (t *trial) unit() time.Duration { return max(t.suite.info.Unit, time.Millisecond) }

// open returns a Locker with a client of its own.
func (t *trial) open() locker.Locker {
	l, err := t.suite.h.Open(t.ctx)
	t.mustWork("Harness.Open", err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lockers = append(t.lockers, l)
	return l
}

// openVia returns a Locker with a client of its own, and the network that it uses.
func (t *trial) openVia() (locker.Locker, *faultnet.Network) {
	n := new(faultnet.Network)
	t.mu.Lock()
	t.networks = append(t.networks, n)
	t.mu.Unlock()
	l, err := t.suite.h.OpenVia(t.ctx, n)
	t.mustWork("Harness.OpenVia", err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lockers = append(t.lockers, l)
	return l, n
}

func (t *trial) openN(n int) []locker.Locker {
	ls := make([]locker.Locker, n)
	for i := range ls {
		ls[i] = t.open()
	}
	return ls
}

// bystander is the Locker that looks at keys from outside, and holds none.
func (t *trial) bystander() locker.Locker {
	t.opening.Lock()
	defer t.opening.Unlock()
	if t.observer == nil {
		t.observer = t.open()
	}
	return t.observer
}

// inspector is l's view for operators, which CapInspect promises.
func (t *trial) inspector(l locker.Locker) locker.Inspector {
	i, ok := l.(locker.Inspector)
	t.must(ok, "a locker.Inspector, as the capability inspect declares", "%T", l)
	return i
}

// forceRelease takes key away from whoever holds it, by the store.
func (t *trial) forceRelease(key string) {
	i := t.inspector(t.bystander())
	h, err := i.Inspect(t.ctx, key)
	t.must(err == nil && h.Holder != "", "a holder", "Inspect: %+v, %v", h, err)
	ok, err := i.ForceRelease(t.ctx, key, h.Holder)
	t.must(err == nil && ok, "true: the holder was still there", "ForceRelease: %v, %v", ok, err)
}

// acquire is l.Acquire with the working TTL, which opts can override.
func (t *trial) acquire(ctx context.Context, l locker.Locker, key string, opts ...locker.Option) (locker.Lock, error) {
	k, err := l.Acquire(ctx, key, t.options(opts)...)
	t.wantLockOrError(k, err)
	return k, err
}

// try is l.TryAcquire with the working TTL, which opts can override.
func (t *trial) try(ctx context.Context, l locker.Locker, key string, opts ...locker.Option) (locker.Lock, error) {
	k, err := l.TryAcquire(ctx, key, t.options(opts)...)
	t.wantLockOrError(k, err)
	return k, err
}

func (t *trial) options(opts []locker.Option) []locker.Option {
	return slices.Concat([]locker.Option{locker.WithTTL(t.ttl)}, opts)
}

func (t *trial) wantLockOrError(k locker.Lock, err error) {
	t.must((k == nil) == (err != nil), "a lock or an error (G7)", "lock: %v, error: %v", k, err)
}

// take acquires a key that is free, or is being freed.
func (t *trial) take(l locker.Locker, key string, opts ...locker.Option) locker.Lock {
	ctx, cancel := context.WithTimeout(t.ctx, prompt)
	defer cancel()
	k, err := t.acquire(ctx, l, key, opts...)
	t.must(err == nil, "the lock, which is free", "Acquire: %v", err)
	return k
}

// release gives k back.
func (t *trial) release(k locker.Lock) {
	err := k.Release(t.ctx)
	t.must(err == nil, "nil: the lock was held until its release", "Release: %v", err)
}

// extend sets k's lease, which the capability extend promises.
func (t *trial) extend(k locker.Lock, ttl time.Duration) {
	err := k.Extend(t.ctx, ttl)
	t.must(err == nil, "nil", "Extend: %v", err)
}

// wantFree takes key from outside, and gives it back.
func (t *trial) wantFree(key string) {
	t.release(t.take(t.bystander(), key))
}

// wantHeld asks from outside for key, and returns who has it.
func (t *trial) wantHeld(key string) *locker.HeldError {
	return t.wantRefused(key, func() error { return nil })
}

// wantRefused is wantHeld. If the key was free, the failure says what its holder believed
// then: a lock that he knows he has lost, on a machine that stood still, is another matter
// than two holders.
func (t *trial) wantRefused(key string, believed func() error) *locker.HeldError {
	k, err := t.try(t.ctx, t.bystander(), key)
	lost := believed()
	if k != nil {
		t.release(k)
	}
	var held *locker.HeldError
	t.must(errors.As(err, &held), "a *HeldError: the key is held", "TryAcquire: %v; Err of the holder: %v", err, lost)
	t.want(held.Key == key, "the key that was asked for", "HeldError.Key: %q", held.Key)
	return held
}

// wantHeldBy is wantHeld, and checks the holder where the store shows it.
func (t *trial) wantHeldBy(k locker.Lock) *locker.HeldError {
	held := t.wantRefused(k.Key(), k.Err)
	switch {
	case !t.can(locker.CapHolder):
	case t.can(locker.CapSessionHolder):
		t.want(held.Holder != "", "the session that holds it", "no HeldError.Holder")
	default:
		t.want(held.Holder == k.Owner(), "the holder "+k.Owner(), "HeldError.Holder: %q", held.Holder)
	}
	return held
}

// wantLost waits for the loss of k, and checks its reason if some are given.
func (t *trial) wantLost(k locker.Lock, d time.Duration, reasons ...locker.Reason) {
	start := time.Now()
	t.must(within(k.Done(), d), fmt.Sprintf("Done closed within %v", d), "Done is open after %v", time.Since(start))
	t.wantLostError(k.Err(), reasons...)
}

func (t *trial) wantLostError(err error, reasons ...locker.Reason) {
	t.wantError(err, locker.ErrLost)
	t.wantNoMatch(err, locker.ErrReleased, locker.ErrHeld)
	var lost *locker.LostError
	t.must(errors.As(err, &lost), "a *LostError", "error: %#v", err)
	t.want(len(reasons) == 0 || slices.Contains(reasons, lost.Reason),
		fmt.Sprintf("one of the reasons %q", reasons), "reason %q", lost.Reason)
}

// wantAlive checks that k is held as far as its holder can see.
func (t *trial) wantAlive(k locker.Lock) {
	t.want(k.Err() == nil, "a live lock", "Err: %v", k.Err())
	t.want(!isClosed(k.Done()), "Done open", "Done is closed")
}

// residue returns a check that the store, in time, shows no name that it does
// not show now.
func (t *trial) residue() (wantNone func()) {
	names := func() []string {
		names, err := t.suite.h.Names(t.ctx)
		t.mustWork("Harness.Names", err)
		return names
	}
	before := names()
	return func() {
		var left []string
		none := t.eventually(func() bool {
			left = slices.DeleteFunc(names(), func(n string) bool { return slices.Contains(before, n) })
			return len(left) == 0
		})
		t.want(none, "nothing left in the store", "%d names, such as %q", len(left), left[:min(len(left), 5)])
	}
}
