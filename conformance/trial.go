package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
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

	mu       sync.Mutex
	lockers  []locker.Locker
	children []*child
	observer locker.Locker
	failures []Failure
	broken   error
}

// result is the verdict, after close.
func (t *trial) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.broken != nil:
		return Result{Status: Error, Reason: t.broken.Error(), Failures: t.failures}
	case len(t.failures) > 0:
		return Result{Status: Fail, Failures: t.failures}
	}
	return Result{Status: Pass}
}

// close ends what the case opened and started.
func (t *trial) close() {
	t.mu.Lock()
	lockers, children := t.lockers, t.children
	t.mu.Unlock()
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
}

// --- Verdicts ---

// fail records that seen is not what was wanted.
func (t *trial) fail(seen, wanted string) {
	at := place()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.failures {
		if t.failures[i].Place == at { // a loop: the first round tells the story
			t.failures[i].Times++
			return
		}
	}
	t.failures = append(t.failures, Failure{Seen: seen, Wanted: wanted, Place: at, Times: 1})
}

// want records a failure unless ok; seen is a format.
func (t *trial) want(ok bool, wanted, seen string, args ...any) bool {
	if !ok {
		t.fail(fmt.Sprintf(seen, args...), wanted)
	}
	return ok
}

// must is want, and ends the calling goroutine on a failure.
func (t *trial) must(ok bool, wanted, seen string, args ...any) {
	if !t.want(ok, wanted, seen, args...) {
		runtime.Goexit()
	}
}

// mustWork ends the calling goroutine if the suite or the Harness broke.
func (t *trial) mustWork(what string, err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	if t.broken == nil {
		t.broken = fmt.Errorf("%s: %w", what, err)
	}
	t.mu.Unlock()
	runtime.Goexit()
}

// place is where the case stands: the innermost function of this package that is
// a case's, and not a method or the runner.
func place() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		file := filepath.Base(f.File)
		if strings.HasPrefix(f.Function, packagePath) && !strings.Contains(f.Function, ".(*") &&
			file != "suite.go" && file != "harness.go" {
			return fmt.Sprintf("%s:%d", file, f.Line)
		}
		if !more {
			return "no line of the case"
		}
	}
}

// wantError records a failure unless err matches all of targets.
func (t *trial) wantError(err error, targets ...error) bool {
	for _, target := range targets {
		if !errors.Is(err, target) {
			return t.want(false, fmt.Sprintf("an error that matches %q", target), "error: %v", err)
		}
	}
	return true
}

// wantNoMatch records a failure if err matches one of targets.
func (t *trial) wantNoMatch(err error, targets ...error) {
	for _, target := range targets {
		t.want(!errors.Is(err, target), fmt.Sprintf("an error that does not match %q", target), "error: %v", err)
	}
}

// --- Keys and Lockers ---

// key returns a key that nobody else uses.
func (t *trial) key() string { return t.named(fmt.Sprintf("key-%d", t.keys.Add(1))) }

// named returns a key of this trial that ends in text.
func (t *trial) named(text string) string { return t.name + "/" + text }

// can reports whether the Locker declares c.
func (t *trial) can(c locker.Capability) bool { return t.suite.info.Can.Has(c) }

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

func (t *trial) openN(n int) []locker.Locker {
	ls := make([]locker.Locker, n)
	for i := range ls {
		ls[i] = t.open()
	}
	return ls
}

// bystander is the Locker that looks at keys from outside, and holds none.
func (t *trial) bystander() locker.Locker {
	t.mu.Lock()
	l := t.observer
	t.mu.Unlock()
	if l == nil {
		l = t.open()
		t.mu.Lock()
		t.observer = l
		t.mu.Unlock()
	}
	return l
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

// --- Taking and giving back ---

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
	k, err := t.try(t.ctx, t.bystander(), key)
	if k != nil {
		t.release(k)
	}
	var held *locker.HeldError
	t.must(errors.As(err, &held), "a *HeldError: the key is held", "TryAcquire: %v", err)
	t.want(held.Key == key, "the key that was asked for", "HeldError.Key: %q", held.Key)
	return held
}

// wantHeldBy is wantHeld, and checks the holder where the store shows it.
func (t *trial) wantHeldBy(k locker.Lock) *locker.HeldError {
	held := t.wantHeld(k.Key())
	if t.can(locker.CapHolder) {
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

// --- Time and goroutines ---

// pass lets d pass, or ends the calling goroutine with the case.
func (t *trial) pass(d time.Duration) {
	if within(t.ctx.Done(), d) {
		runtime.Goexit()
	}
}

// passUntil lets the time pass until just after at.
func (t *trial) passUntil(at time.Time) { t.pass(time.Until(at) + time.Nanosecond) }

// eventually waits for ok, but not longer than prompt.
func (t *trial) eventually(ok func() bool) bool {
	for end := time.Now().Add(prompt); !ok(); t.pass(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// start runs f on its own goroutine and closes the channel at its end.
func (t *trial) start(f func()) <-chan struct{} {
	done := make(chan struct{})
	t.running.Go(func() {
		defer close(done)
		defer t.recover()
		f()
	})
	return done
}

// parallel runs f(0) to f(n-1), each on its own goroutine, and waits for all.
// If one of them could not go on, neither does the caller.
func (t *trial) parallel(n int, f func(i int)) {
	var finished atomic.Int64
	var done []<-chan struct{}
	for i := range n {
		done = append(done, t.start(func() {
			f(i)
			finished.Add(1)
		}))
	}
	for _, d := range done {
		<-d
	}
	if int(finished.Load()) < n {
		runtime.Goexit()
	}
}

// waiter is an Acquire that runs in the background.
type waiter struct {
	t      *trial
	cancel context.CancelCauseFunc
	done   <-chan struct{}
	lock   locker.Lock // after done
	err    error       // after done
	at     time.Time   // of the answer, after done
}

// wait starts an Acquire of key.
func (t *trial) wait(l locker.Locker, key string, opts ...locker.Option) *waiter {
	ctx, cancel := context.WithCancelCause(t.ctx)
	w := &waiter{t: t, cancel: cancel}
	w.done = t.start(func() {
		defer cancel(nil)
		w.lock, w.err = t.acquire(ctx, l, key, opts...)
		w.at = time.Now()
	})
	return w
}

// waitInLine starts an Acquire of key, which is held, and gives it the time to
// get into the line. There is no event to wait for, so a case must be right, if
// weaker, when that time was not enough.
func (t *trial) waitInLine(l locker.Locker, key string, opts ...locker.Option) *waiter {
	w := t.wait(l, key, opts...)
	t.pass(20 * time.Millisecond)
	return w
}

// served waits for the grant.
func (w *waiter) served(d time.Duration) locker.Lock {
	start := time.Now()
	w.t.must(within(w.done, d), fmt.Sprintf("the lock within %v", d), "still waiting after %v", time.Since(start))
	w.t.must(w.lock != nil, "the lock", "Acquire: %v", w.err)
	return w.lock
}

// failed waits for the end without a grant.
func (w *waiter) failed(d time.Duration) error {
	start := time.Now()
	w.t.must(within(w.done, d), fmt.Sprintf("an error within %v", d), "still waiting after %v", time.Since(start))
	w.t.must(w.err != nil, "an error", "Acquire: a lock")
	return w.err
}

// --- Claims ---

// claim is what an arena needs of a lock.
type claim interface {
	Token() uint64
	Err() error
}

// arena sees every claim on one key: from the return of an acquire until the
// call of the release, or the loss. Two of them must never overlap.
type arena struct {
	t      *trial
	mu     sync.Mutex
	holder claim
	token  uint64
	grants int
}

// enter is called as soon as an acquire has returned k.
func (a *arena) enter(k claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.t.want(a.holder == nil || a.holder.Err() != nil, "one holder at a time",
		"a grant (token %d) while the holder of token %d is alive", k.Token(), a.token)
	if a.t.can(locker.CapToken) {
		a.t.want(k.Token() > a.token, fmt.Sprintf("a token over %d, the latest one (G3)", a.token), "token %d", k.Token())
	}
	a.holder, a.token = k, max(a.token, k.Token())
	a.grants++
}

// leave is called just before k's release.
func (a *arena) leave(k claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holder == k {
		a.holder = nil
	}
}

// --- Residue ---

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
		t.want(t.eventually(func() bool {
			left = slices.DeleteFunc(names(), func(n string) bool { return slices.Contains(before, n) })
			return len(left) == 0
		}), "nothing left in the store", "%d names, such as %q", len(left), left[:min(len(left), 5)])
	}
}
