package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-locker/locker"
)

const (
	ruleOneHolder = "At most one exclusive holder of a key among live grants. Two lockers, two processes, two goroutines of one locker on one shared connection: all the same."
	ruleFresh     = "A grant has a fresh owner id (UUID) and a fencing token larger than every earlier token of that key: across release, expiry, other clients, restarts of clients."
	ruleLabel     = "With WithLabel the stored value is `owner SP label`; HeldError.Holder is what the store shows. A label is valid UTF-8 without control characters, at most 128 bytes."
	ruleUndo      = "If Acquire returns an error (timeout, cancel in flight), nothing stays taken."
	ruleTry       = "TryAcquire is one attempt: prompt under any contention, *HeldError (holder and remaining time where the store knows)."
	ruleDeadCtx   = "A dead ctx takes nothing, sends nothing, and returns an error matching both ctx.Err() and context.Cause(ctx), and nothing else."
	ruleWaitEnds  = "When a wait ends, the error matches both ctx.Err() and context.Cause(ctx), and ErrHeld if and only if the last definite answer of this call was \"held\"."
)

var grantCases = []Case{{
	ID: "G1/goroutines", Rule: ruleOneHolder, Needs: locker.CapExclusive, Cites: []string{"C94", "C124"},
	run: func(t *trial) { contend(t, t.openN(1), 64, 3) },
}, {
	ID: "G1/lockers", Rule: ruleOneHolder, Needs: locker.CapExclusive, Cites: []string{"C94", "C127"},
	run: func(t *trial) { contend(t, t.openN(8), 64, 2) },
}, {
	ID: "G1/many-keys", Rule: ruleOneHolder, Needs: locker.CapExclusive, Cites: []string{"C04", "C124"},
	run: contendForManyKeys,
}, {
	ID: "G1/attempts", Rule: ruleOneHolder, Needs: locker.CapExclusive, Cites: []string{"C94"},
	run: attemptsAtOnce,
}, {
	ID: "G1/processes", Rule: ruleOneHolder, Needs: locker.CapExclusive, Uses: PartProcesses, Cites: []string{"C81"},
	run: contendingProcesses,
}, {
	ID: "G1/not-re-entrant", Rule: "Not re-entrant: a second acquire waits or is held.",
	Needs: locker.CapExclusive, Cites: []string{"C94", "C133"},
	run: notReentrant,
}, {
	ID: "G2/acquire-context-ends", Rule: "The acquire ctx bounds acquiring only. It never bounds the hold, the renewal or the release.",
	Cites: []string{"C39"},
	run:   acquireContextEnds,
}, {
	ID: "G3/owner", Rule: ruleFresh, Cites: []string{"C81"},
	run: freshOwner,
}, {
	ID: "G3/token", Rule: ruleFresh, Needs: locker.CapToken, Cites: []string{"C127"},
	run: tokenRises,
}, {
	ID: "G3/token-after-expiry", Rule: ruleFresh, Needs: locker.CapToken | locker.CapExpiry, Cites: []string{"C127"},
	run: tokenRisesAfterExpiry,
}, {
	ID: "G3/token-of-processes", Rule: ruleFresh, Needs: locker.CapToken, Uses: PartProcesses, Cites: []string{"C127"},
	run: tokenRisesAcrossProcesses,
}, {
	ID: "G3/bounded-counters", Rule: "The number of counters in the store is bounded (no counter per key).",
	Needs: locker.CapToken, Uses: PartNames, Cites: []string{"C127"},
	run: boundedCounters,
}, {
	ID: "G3/label", Rule: ruleLabel, Needs: locker.CapHolder,
	run: labelShown,
}, {
	ID: "G3/bad-label", Rule: ruleLabel,
	run: badLabel,
}, {
	ID: "G4/cancelled-acquire", Rule: ruleUndo, Cites: []string{"C02", "C04"},
	run: func(t *trial) { endedAcquires(t, false) },
}, {
	ID: "G4/timed-out-acquire", Rule: ruleUndo, Cites: []string{"C02"},
	run: func(t *trial) { endedAcquires(t, true) },
}, {
	ID: "G5/prompt", Rule: ruleTry, Needs: locker.CapExclusive,
	run: promptAttempts,
}, {
	ID: "G5/held-error", Rule: ruleTry, Needs: locker.CapExclusive | locker.CapHolder,
	run: heldError,
}, {
	ID: "G5/session-holder", Rule: "Where a session of the store is shown as the holder, it is the one that has the key now, and Inspect shows the same.",
	Needs: locker.CapExclusive | locker.CapHolder | locker.CapSessionHolder,
	run:   sessionHolder,
}, {
	ID: "G6/dead-context", Rule: ruleDeadCtx, Cites: []string{"C03"},
	run: deadContext,
}, {
	ID: "G6/dead-context-on-held-key", Rule: ruleDeadCtx, Cites: []string{"C03", "C08"},
	run: deadContextOnHeldKey,
}, {
	ID: "G6/dead-context-sends-nothing", Rule: ruleDeadCtx, Uses: PartRequests, Cites: []string{"C03"},
	run: deadContextSendsNothing,
}, {
	ID: "G6/wait-cancelled", Rule: ruleWaitEnds, Needs: locker.CapExclusive, Cites: []string{"C08"},
	run: waitCancelled,
}, {
	ID: "G6/wait-timed-out", Rule: ruleWaitEnds, Needs: locker.CapExclusive, Cites: []string{"C05", "C08"},
	run: waitTimedOut,
}, {
	ID: "G7/lock-or-error", Rule: "(lock, nil) only when the store confirmed; never (nil, nil).", Cites: []string{"C10"},
	run: lockOrError,
}, {
	ID: "G7/held-means-held", Rule: "ErrHeld only when the store, or this locker's own live grant, said so.", Cites: []string{"C09"},
	run: heldMeansHeld,
}, {
	ID: "G8/shortest-lease", Rule: ruleLate,
	Cites: []string{"C12"},
	run:   shortestLease,
}}

// contend lets goroutines, spread over lockers, take one key again and again.
func contend(t *trial, lockers []locker.Locker, goroutines, rounds int) {
	key := t.key()
	a := &arena{t: t}
	t.parallel(goroutines, func(i int) {
		for range rounds {
			k, err := t.acquire(t.ctx, lockers[i%len(lockers)], key)
			t.must(err == nil, "the lock, sooner or later", "Acquire: %v", err)
			a.enter(k)
			t.pass(time.Millisecond)
			a.leave(k)
			err = k.Release(t.ctx)
			late := !time.Now().Before(k.Deadline()) // this machine has stood still for a lease
			t.must(err == nil || late && errors.Is(err, locker.ErrLost), "nil: the lock was held until its release", "Release: %v", err)
			t.pass(time.Duration(i%3) * 300 * time.Microsecond) // some come back at once, some while others hold it
		}
	})
	t.want(a.grants == goroutines*rounds, "every acquire served once", "%d grants for %d calls", a.grants, goroutines*rounds)
}

// contendForManyKeys lets keys come and go: taken, waited for, given up and
// released by many, so that an entry is often removed while somebody is about to
// use it.
func contendForManyKeys(t *trial) {
	lockers := t.openN(2)
	arenas := make(map[string]*arena)
	var keys []string
	for range 8 {
		keys = append(keys, t.key())
		arenas[keys[len(keys)-1]] = &arena{t: t}
	}
	t.parallel(64, func(i int) {
		for round := range 5 {
			key := keys[(i+3*round)%len(keys)]
			ctx, cancel := t.ctx, context.CancelFunc(func() {})
			if (i+round)%3 == 0 {
				ctx, cancel = context.WithTimeout(t.ctx, time.Duration(i%7)*100*time.Microsecond)
			}
			k, err := t.acquire(ctx, lockers[i/8%len(lockers)], key)
			cancel()
			if err != nil {
				t.must(ctx != t.ctx, "the lock, sooner or later", "Acquire: %v", err)
				t.wantError(err, context.DeadlineExceeded)
				continue
			}
			arenas[key].enter(k)
			t.pass(time.Duration(i%3) * 70 * time.Microsecond)
			arenas[key].leave(k)
			t.release(k)
		}
	})
	for _, key := range keys {
		t.wantFree(key)
	}
}

func attemptsAtOnce(t *trial) {
	lockers := t.openN(4)
	for range 5 {
		key := t.key()
		a := &arena{t: t}
		t.parallel(32, func(i int) {
			k, err := t.try(t.ctx, lockers[i%len(lockers)], key)
			if err != nil {
				t.wantError(err, locker.ErrHeld)
				return
			}
			a.enter(k) // and never leaves
		})
		t.want(a.grants == 1, "one lock for 32 attempts at once", "%d locks", a.grants)
	}
}

func contendingProcesses(t *trial) {
	key := t.key()
	a := &arena{t: t}
	var children []*child
	for range 3 {
		children = append(children, t.child())
	}
	t.parallel(12, func(i int) {
		for range 3 {
			k := children[i%len(children)].acquire(key, t.ttl)
			a.enter(k)
			t.pass(time.Millisecond)
			a.leave(k)
			k.release()
		}
	})
	t.want(a.grants == 36, "every acquire served once", "%d grants for 36 calls", a.grants)
}

func notReentrant(t *trial) {
	l, key := t.open(), t.key()
	k := t.take(l, key, locker.WithTTL(long))
	for _, l := range []locker.Locker{l, t.open()} {
		_, err := t.try(t.ctx, l, key)
		t.wantError(err, locker.ErrHeld)
	}
	ctx, cancel := context.WithTimeout(t.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := t.acquire(ctx, l, key)
	t.wantError(err, locker.ErrHeld, context.DeadlineExceeded)
	t.wantAlive(k)
	t.release(k)
	t.wantFree(key)
}

func acquireContextEnds(t *trial) {
	l, other := t.open(), t.open()
	t.connected(l)
	t.connected(other)
	var held []locker.Lock
	for _, end := range []func(context.Context) (context.Context, context.CancelFunc){
		context.WithCancel,
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, t.ttl)
		},
	} {
		ctx, cancel := end(t.ctx)
		defer cancel()
		// Three ways to a lock: free, waited for, and by one attempt.
		k, err := t.acquire(ctx, l, t.key())
		t.must(err == nil, "the lock, which is free", "Acquire: %v", err)
		held = append(held, k)

		before := t.take(other, t.key())
		released := t.start(func() {
			t.pass(t.ttl / 20)
			t.release(before)
		})
		k, err = t.acquire(ctx, l, before.Key())
		t.must(err == nil, "the lock, which was released", "Acquire: %v", err)
		<-released
		held = append(held, k)

		k, err = t.try(ctx, l, t.key())
		t.must(err == nil, "the lock, which is free", "TryAcquire: %v", err)
		held = append(held, k)
		if _, timed := ctx.Deadline(); !timed {
			cancel()
		}
		<-ctx.Done()
	}

	t.pass(2 * held[0].TTL())
	for _, k := range held {
		t.wantAlive(k)
		t.wantHeldBy(k)
		t.release(k)
		t.wantFree(k.Key())
	}
}

func freshOwner(t *trial) {
	seen := make(map[string]bool)
	key := t.key()
	for _, l := range t.openN(2) {
		for _, key := range []string{key, key, t.key()} {
			k := t.take(l, key)
			t.want(isUUID(k.Owner()), "a UUID", "Owner: %q", k.Owner())
			t.want(!seen[k.Owner()], "a fresh owner id", "%q again", k.Owner())
			t.want(k.Key() == key, "the key as given", "Key: %q", k.Key())
			seen[k.Owner()] = true
			t.release(k)
		}
	}
}

// isUUID reports whether s has a UUID's shape, 8-4-4-4-12 hexadecimal digits.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range s {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			return false
		}
	}
	return true
}

func tokenRises(t *trial) {
	key := t.key()
	ar := &arena{t: t}
	cycle := func(l locker.Locker) {
		k := t.take(l, key)
		ar.enter(k)
		ar.leave(k)
		t.release(k)
	}
	a, b := t.open(), t.open()
	for range 3 { // release, and other clients
		cycle(a)
		cycle(a)
		cycle(b)
	}
	for range 3 { // clients that come and go
		l := t.open()
		cycle(l)
		closeNow(t.ctx, l)
	}
	for range 3 { // waiters of the same client, and of another
		k := t.take(a, key)
		ar.enter(k)
		waiting := t.start(func() {
			t.parallel(4, func(i int) { cycle([]locker.Locker{a, b}[i%2]) })
		})
		t.pass(20 * time.Millisecond)
		ar.leave(k)
		t.release(k)
		<-waiting
	}
}

func tokenRisesAfterExpiry(t *trial) {
	key := t.key()
	old := t.take(t.open(), key, locker.WithoutRenewal())
	k := t.wait(t.open(), key).served(old.TTL() + prompt)
	t.want(k.Token() > old.Token(), fmt.Sprintf("a token over %d, of the expired grant", old.Token()), "token %d", k.Token())
	t.release(k)
}

func tokenRisesAcrossProcesses(t *trial) {
	key := t.key()
	l := t.open()
	var latest uint64
	for range 3 {
		c := t.child()
		r := c.acquire(key, t.ttl)
		t.want(r.Token() > latest, fmt.Sprintf("a token over %d, the latest one", latest), "token %d", r.Token())
		r.release()
		c.end()
		k := t.take(l, key)
		t.want(k.Token() > r.Token(), fmt.Sprintf("a token over %d, of another process", r.Token()), "token %d", k.Token())
		latest = k.Token()
		t.release(k)
	}
}

func boundedCounters(t *trial) {
	l := t.open()
	t.release(t.take(l, t.key())) // the documented counters may come into being
	none := t.residue()
	for range 50 {
		t.release(t.take(l, t.key()))
	}
	none()
}

func labelShown(t *trial) {
	l := t.open()
	for _, label := range []string{"", "host-7 pid 42", "日本 %s \\ 'quoted\"", strings.Repeat("x", 128)} {
		k := t.take(l, t.key(), locker.WithLabel(label))
		want := k.Owner()
		if label != "" {
			want += " " + label
		}
		// A session has no label; then it is enough that a labelled lock can be had.
		if held := t.wantHeld(k.Key()); !t.can(locker.CapSessionHolder) {
			t.want(held.Holder == want, fmt.Sprintf("%q", want), "HeldError.Holder: %q", held.Holder)
		}
		t.release(k)
		t.wantFree(k.Key())
	}
}

func badLabel(t *trial) {
	l, key := t.open(), t.key()
	for _, label := range []string{"a\nb", "\x00", "\x7f", "\xff\xfe", strings.Repeat("x", 129)} {
		_, err := t.acquire(t.ctx, l, key, locker.WithLabel(label))
		t.wantError(err, locker.ErrInvalid)
		_, err = t.try(t.ctx, l, key, locker.WithLabel(label))
		t.wantError(err, locker.ErrInvalid)
	}
	t.wantFree(key)
}

// endedAcquires ends acquires of free keys at every point of their way, and
// then looks for what they left.
func endedAcquires(t *trial, byDeadline bool) {
	l := t.open()
	start := time.Now()
	t.release(t.take(l, t.key()))
	trip := max(time.Since(start), 100*time.Microsecond)

	const steps = 50
	var keys []string
	for i := range steps {
		key := t.key()
		after := trip * time.Duration(i) / steps
		var ctx context.Context
		var cancel context.CancelFunc
		if byDeadline {
			ctx, cancel = context.WithTimeout(t.ctx, after)
		} else {
			ctx, cancel = context.WithCancel(t.ctx)
			t.start(func() {
				if after > 0 {
					within(ctx.Done(), after)
				}
				cancel()
			})
		}
		acquire := t.acquire
		if i%2 == 1 {
			acquire = t.try
		}
		k, err := acquire(ctx, l, key, locker.WithTTL(long))
		if err == nil {
			t.wantAlive(k)
			t.release(k)
		} else {
			t.wantError(err, ctx.Err(), context.Cause(ctx))
			t.wantNoMatch(err, locker.ErrHeld)
		}
		keys = append(keys, key)
		cancel()
	}
	for _, key := range keys {
		t.wantFree(key)
	}
}

func promptAttempts(t *trial) {
	key := t.key()
	k := t.take(t.open(), key, locker.WithTTL(long))
	lockers := t.openN(4)
	for i := range 16 { // others stand in line
		t.wait(lockers[i%2], key)
	}
	t.pass(20 * time.Millisecond)
	t.parallel(64, func(i int) {
		start := time.Now()
		_, err := t.try(t.ctx, lockers[i%len(lockers)], key)
		took := time.Since(start)
		var held *locker.HeldError
		t.want(errors.As(err, &held), "a *HeldError", "TryAcquire: %v", err)
		t.want(took < prompt, "an answer for 64 attempts at once within "+prompt.String(), "%v", took)
	})
	t.wantAlive(k)
}

func heldError(t *trial) {
	key := t.key()
	k := t.take(t.open(), key, locker.WithTTL(long))
	held := t.wantHeldBy(k)
	if t.can(locker.CapExpiry) {
		t.want(held.Remaining > long-prompt && held.Remaining <= k.TTL(),
			fmt.Sprintf("what remains of %v", k.TTL()), "HeldError.Remaining: %v", held.Remaining)
	}
}

// sessionHolder passes one key from one Locker to another and back.
func sessionHolder(t *trial) {
	a, b, key := t.open(), t.open(), t.key()
	var before string
	for i := range 4 {
		k := t.take([]locker.Locker{a, b}[i%2], key, locker.WithTTL(long))
		held := t.wantHeldBy(k)
		t.want(held.Holder != before, "a session of its own for each Locker", "HeldError.Holder: %q again", before)
		if t.can(locker.CapInspect) {
			h, err := t.inspector(t.bystander()).Inspect(t.ctx, key)
			t.want(err == nil && h.Holder == held.Holder, fmt.Sprintf("the holder %q", held.Holder), "Inspect: %+v, %v", h, err)
		}
		before = held.Holder
		t.release(k)
	}
}

var errCause = errors.New("the cause that the case gave")

// deadContexts returns one context that was cancelled, and one whose deadline
// has passed.
func (t *trial) deadContexts() []context.Context {
	cancelled, cancel := context.WithCancelCause(t.ctx)
	cancel(errCause)
	late, cancelLate := context.WithDeadlineCause(t.ctx, time.Now().Add(-time.Second), errCause)
	cancelLate()
	return []context.Context{cancelled, late}
}

// wantDead checks the error of an acquire under a dead context.
func (t *trial) wantDead(ctx context.Context, err error) {
	t.wantError(err, ctx.Err(), context.Cause(ctx))
	t.wantNoMatch(err, locker.ErrHeld, locker.ErrLost, locker.ErrReleased, locker.ErrUnsupported, locker.ErrInvalid, locker.ErrClosed)
}

func deadContext(t *trial) {
	l, key := t.open(), t.key()
	for _, ctx := range t.deadContexts() {
		for range 100 { // a select with two ready cases chooses at random
			_, err := t.acquire(ctx, l, key, locker.WithTTL(long))
			t.wantDead(ctx, err)
			_, err = t.try(ctx, l, key, locker.WithTTL(long))
			t.wantDead(ctx, err)
		}
	}
	k, err := t.try(t.ctx, t.open(), key)
	t.must(err == nil, "a key that is free at once", "TryAcquire: %v", err)
	t.release(k)
}

func deadContextOnHeldKey(t *trial) {
	l, key := t.open(), t.key()
	k := t.take(l, key)
	for _, l := range []locker.Locker{l, t.open()} {
		for _, ctx := range t.deadContexts() {
			_, err := t.acquire(ctx, l, key)
			t.wantDead(ctx, err)
			_, err = t.try(ctx, l, key)
			t.wantDead(ctx, err)
		}
	}
	t.wantAlive(k)
	t.release(k)
}

func deadContextSendsNothing(t *trial) {
	l := t.open()
	t.release(t.take(l, t.key()))
	before := t.suite.h.Requests()
	for _, ctx := range t.deadContexts() {
		_, err := t.acquire(ctx, l, t.key())
		t.wantDead(ctx, err)
		_, err = t.try(ctx, l, t.key())
		t.wantDead(ctx, err)
	}
	sent := t.suite.h.Requests() - before
	t.want(sent == 0, "no request", "%d requests", sent)
}

func waitCancelled(t *trial) {
	l, key := t.open(), t.key()
	k := t.take(l, key, locker.WithTTL(long))
	for _, l := range []locker.Locker{l, t.open()} {
		untilHeld(t, func(wait time.Duration) error {
			w := t.wait(l, key)
			t.pass(wait)
			w.cancel(errCause)
			err := w.failed(prompt)
			t.wantError(err, context.Canceled, errCause)
			t.wantNoMatch(err, context.DeadlineExceeded, locker.ErrLost, locker.ErrClosed)
			return err
		})
	}
	t.wantAlive(k)
}

func waitTimedOut(t *trial) {
	l, key := t.open(), t.key()
	k := t.take(l, key, locker.WithTTL(long))
	for _, l := range []locker.Locker{l, t.open()} {
		untilHeld(t, func(wait time.Duration) error {
			start := time.Now() // before the context, whose deadline counts from its making
			ctx, cancel := context.WithTimeoutCause(t.ctx, wait, errCause)
			defer cancel()
			_, err := t.acquire(ctx, l, key)
			took := time.Since(start)
			t.wantError(err, context.DeadlineExceeded, errCause)
			t.wantNoMatch(err, context.Canceled, locker.ErrLost, locker.ErrClosed)
			t.want(took >= wait, "a wait until the deadline", "it ended after %v of %v", took, wait)
			t.want(took < wait+prompt, "a wait that ends with its deadline", "%v for a wait of %v", took, wait)
			return err
		})
	}
	t.wantAlive(k)
}

// untilHeld lets longer and longer waits end, until one of them had the time to
// hear that the key is held.
func untilHeld(t *trial, wait func(time.Duration) error) {
	var err error
	for _, d := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, prompt} {
		if err = wait(d); errors.Is(err, locker.ErrHeld) {
			return
		}
	}
	t.wantError(err, locker.ErrHeld)
}

// lockOrError asks in every way that needs no fault. The check itself stands in
// acquire and try, and so in all cases.
func lockOrError(t *trial) {
	l, key := t.open(), t.key()
	ask := func(ctx context.Context, key string, opts ...locker.Option) {
		for _, acquire := range []func(context.Context, locker.Locker, string, ...locker.Option) (locker.Lock, error){t.acquire, t.try} {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			_, err := acquire(ctx, l, key, opts...)
			cancel()
			t.want(err != nil, "an error", "nil")
		}
	}
	k := t.take(l, key, locker.WithTTL(long))
	ask(t.ctx, key)
	for _, ctx := range t.deadContexts() {
		ask(ctx, key)
		ask(ctx, t.key())
	}
	ask(t.ctx, "")
	ask(t.ctx, t.key(), locker.WithTTL(-1))
	t.release(k)
	closeNow(t.ctx, l)
	ask(t.ctx, key)
}

func heldMeansHeld(t *trial) {
	l, key := t.open(), t.key()
	k := t.take(l, key)
	_, err := t.try(t.ctx, l, key)
	t.wantError(err, locker.ErrHeld)
	_, err = t.try(t.ctx, l, key, locker.WithTTL(0))
	t.wantNoMatch(err, locker.ErrHeld)
	t.release(k)
	for range 20 { // free is free, for everybody and at once
		for _, l := range []locker.Locker{l, t.bystander()} {
			k, err := t.try(t.ctx, l, key)
			t.must(err == nil, "the lock: its holder's Release has returned", "TryAcquire: %v", err)
			t.release(k)
		}
	}
	k = t.take(l, key)
	closeNow(t.ctx, l)
	_, err = t.try(t.ctx, l, key)
	t.wantNoMatch(err, locker.ErrHeld)
	t.wantError(k.Err(), locker.ErrLost)
}

func shortestLease(t *trial) {
	l := t.open()
	for i := range 50 {
		key := t.key()
		// On a slow line no grant arrives in time, and Acquire goes on trying.
		acquire, bound := t.acquire, 50*time.Millisecond
		if i%2 == 1 {
			acquire, bound = t.try, prompt
		}
		ctx, cancel := context.WithTimeout(t.ctx, bound)
		k, err := acquire(ctx, l, key, locker.WithTTL(locker.MinTTL), locker.WithoutRenewal())
		cancel()
		if err != nil {
			t.wantNoMatch(err, locker.ErrHeld)
			if i%2 == 1 {
				t.wantError(err, locker.ErrLost)
			}
		} else if err := k.Release(t.ctx); err != nil {
			t.wantError(err, locker.ErrLost)
		}
		t.wantFree(key)
	}
}
