package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/go-locker/locker"
)

const (
	ruleRenewal    = "Renewal changes only this grant, atomically; it never re-creates, adopts, or outlives it."
	ruleDeadline   = "Deadline = monotonic instant just before the last request that really set or refreshed the lease was sent + TTL − margin (TTL/20, at least 5 ms, at most 250 ms, never over TTL/4)."
	ruleLossInTime = "Done is closed, and Err is ErrLost, no later than Deadline. Err compares the clock when called."
	ruleNotYours   = "\"Not yours\" is a loss at once, with its reason (expired, taken, session ended, max hold, closed)."
	rulePushed     = "A store session that dies (Postgres backend killed, etcd lease revoked) is noticed by push, not at the next renewal."
	ruleEnds       = "A normal release closes Done too; Err tells them apart."
	ruleWithLock   = "WithLock's ctx is cancelled with that cause."
	ruleDo         = "Do releases when fn returns, panics or calls runtime.Goexit, and joins fn's error, first, with the release's."
)

var holdCases = []Case{{
	ID: "H1/renewed", Rule: "Renewed automatically (default) until release, loss, MaxHold or Close.",
	Cites: []string{"C39", "C40", "C114"},
	run:   renewed,
}, {
	ID: "H1/not-re-created", Rule: ruleRenewal, Needs: locker.CapInspect, Cites: []string{"C28", "C33"},
	run: notRecreated,
}, {
	ID: "H1/not-adopted", Rule: ruleRenewal, Needs: locker.CapInspect, Cites: []string{"C28", "C29"},
	run: notAdopted,
}, {
	ID: "H1/expired-is-not-extended", Rule: ruleRenewal, Needs: locker.CapExpiry | locker.CapExtend, Cites: []string{"C28", "C29"},
	run: expiredIsNotExtended,
}, {
	ID: "H1/not-outlived", Rule: ruleRenewal, Cites: []string{"C36"},
	run: notOutlived,
}, {
	ID: "H2/deadline", Rule: ruleDeadline, Cites: []string{"C41"},
	run: deadlineFormula,
}, {
	ID: "H2/deadline-in-store", Rule: ruleDeadline, Needs: locker.CapHolder | locker.CapExpiry, Cites: []string{"C41"},
	run: deadlineInStore,
}, {
	ID: "H2/lost-at-deadline", Rule: ruleLossInTime, Cites: []string{"C31", "C72"},
	run: lostAtDeadline,
}, {
	ID: "H2/err-at-first-call", Rule: ruleLossInTime, Cites: []string{"C46"},
	run: errAtFirstCall,
}, {
	ID: "H2/lost-before-next-grant", Rule: ruleLossInTime, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C31", "C72"},
	run: lostBeforeNextGrant,
}, {
	ID: "H3/forced", Rule: ruleNotYours, Needs: locker.CapInspect, Cites: []string{"C33"},
	run: forced,
}, {
	ID: "H3/max-hold", Rule: ruleNotYours, Cites: []string{"C48"},
	run: maxHold,
}, {
	ID: "H3/closed", Rule: ruleNotYours,
	run: lostByClose,
}, {
	ID: "H4/released", Rule: ruleEnds,
	run: released,
}, {
	ID: "H4/context-of-lost-lock", Rule: ruleWithLock,
	run: contextOfLostLock,
}, {
	ID: "H4/context-of-released-lock", Rule: ruleWithLock,
	run: contextOfReleasedLock,
}, {
	ID: "H4/do", Rule: ruleDo, Cites: []string{"C26"},
	run: doJoinsErrors,
}, {
	ID: "H4/do-panics", Rule: ruleDo, Cites: []string{"C27"},
	run: doPanics,
}, {
	ID: "H5/pushed", Rule: rulePushed, Needs: locker.CapInspect | locker.CapPushLoss,
	run: lossPushed,
}}

func renewed(t *trial) {
	k := t.take(t.open(), t.key())
	first := k.Deadline()
	for range 6 {
		t.pass(k.TTL() / 2)
		t.wantAlive(k)
		t.wantHeldBy(k)
	}
	t.want(k.Deadline().After(first), "a Deadline that renewal has moved", "%v after the first one", k.Deadline().Sub(first))
	t.release(k)
	t.wantFree(k.Key())
}

// notRecreated takes the key out of the store under a live holder.
func notRecreated(t *trial) {
	k := t.take(t.open(), t.key())
	t.forceRelease(k.Key())
	view := t.inspector(t.bystander())
	for end := time.Now().Add(2 * k.TTL()); time.Now().Before(end); t.pass(k.TTL() / 20) {
		h, err := view.Inspect(t.ctx, k.Key())
		t.must(err == nil, "an answer", "Inspect: %v", err)
		t.must(h.Holder == "", "a key that stays free", "held again by %q", h.Holder)
	}
	t.wantLost(k, 0)
	t.wantLostError(k.Release(t.ctx))
	t.wantFree(k.Key())
}

// notAdopted lets somebody else take the key before the old holder renews.
func notAdopted(t *trial) {
	k := t.take(t.open(), t.key())
	t.forceRelease(k.Key())
	next := t.take(t.open(), k.Key(), locker.WithTTL(2*t.ttl), locker.WithoutRenewal())
	end := time.Now().Add(next.TTL()) // of its lease in the store, at the latest
	t.wantLost(k, k.TTL()+prompt, t.orSession(locker.ReasonTaken, locker.ReasonExpired)...)
	if next.Err() == nil && !t.can(locker.CapSessionHolder) { // what remains is the session's, which anything may refresh
		atMost := time.Until(end) + t.unit()
		held := t.wantHeldBy(next)
		t.want(held.Remaining <= atMost, "a lease that nobody has renewed",
			"%v left instead of at most %v", held.Remaining, atMost)
	}
	t.wantLostError(k.Release(t.ctx))
	t.wantLost(next, next.TTL()+prompt, t.orSession(locker.ReasonExpired)...)
}

func expiredIsNotExtended(t *trial) {
	old := t.take(t.open(), t.key(), locker.WithoutRenewal())
	k := t.wait(t.open(), old.Key(), locker.WithTTL(long/2)).served(old.TTL() + prompt)
	t.wantLostError(old.Extend(t.ctx, 2*long), locker.ReasonExpired, locker.ReasonTaken)
	held := t.wantHeldBy(k)
	t.want(held.Remaining <= k.TTL(), fmt.Sprintf("at most the %v of the next holder", k.TTL()), "%v left", held.Remaining)
	t.wantAlive(k)
	t.release(k)
}

// notOutlived watches keys whose locks were released while a renewal was due.
func notOutlived(t *trial) {
	l := t.open()
	t.parallel(8, func(i int) {
		k := t.take(l, t.key())
		t.pass(k.TTL()/3 + time.Duration(2*i-7)*time.Millisecond/2)
		t.release(k)
		for end := time.Now().Add(k.TTL()); time.Now().Before(end); t.pass(k.TTL() / 10) {
			k, err := t.try(t.ctx, t.bystander(), k.Key())
			t.must(err == nil, "a key that stays free", "TryAcquire: %v", err)
			t.release(k)
		}
	})
}

// margin is what a Deadline keeps off the store's end.
func margin(ttl time.Duration) time.Duration {
	return min(max(ttl/20, 5*time.Millisecond), 250*time.Millisecond, ttl/4)
}

func deadlineFormula(t *trial) {
	l := t.open()
	check := func(k locker.Lock, what string) {
		d := k.Deadline() // before looking at the clock: a renewal may come in between
		latest := time.Now().Add(k.TTL() - margin(k.TTL()))
		t.want(!d.After(latest), "a Deadline counted from before the request, less the margin",
			"%s: %v later than that", what, d.Sub(latest))
	}
	for range 10 {
		k := t.take(l, t.key(), locker.WithoutRenewal())
		check(k, "after the grant")
		t.want(time.Now().Before(k.Deadline()), "a grant with time left", "Deadline %v ago", time.Since(k.Deadline()))
		if t.can(locker.CapExtend) {
			t.extend(k, 2*t.ttl)
			check(k, "after Extend")
		}
		t.release(k)
	}
	k := t.take(l, t.key())
	for end := time.Now().Add(k.TTL()); time.Now().Before(end); t.pass(k.TTL() / 20) {
		check(k, "under renewal")
	}
	t.release(k)
}

func deadlineInStore(t *trial) {
	l := t.open()
	t.connected(t.bystander())
	for range 10 {
		t.wantDeadlinesInStore(l)
	}
	t.wantRenewedDeadlinesInStore(l)
}

// wantDeadlinesInStore compares the Deadlines of one lock with what the store tells
// others.
func (t *trial) wantDeadlinesInStore(l locker.Locker) {
	k := t.take(l, t.key(), locker.WithoutRenewal())
	t.wantDeadlineInStore(k)
	if t.can(locker.CapExtend) {
		for _, ttl := range []time.Duration{2 * t.ttl, t.ttl} {
			t.extend(k, ttl)
			t.wantDeadlineInStore(k)
		}
	}
	t.release(k)
}

// wantRenewedDeadlinesInStore compares while one is renewed.
func (t *trial) wantRenewedDeadlinesInStore(l locker.Locker) {
	k := t.take(l, t.key())
	for end := time.Now().Add(k.TTL()); time.Now().Before(end); t.pass(k.TTL() / 20) {
		t.wantDeadlineInStore(k)
	}
	t.release(k)
}

func (t *trial) wantDeadlineInStore(k locker.Lock) {
	d := k.Deadline() // before asking: a renewal in between only moves the store's end on
	held := t.wantHeld(k.Key())
	end := time.Now().Add(held.Remaining + t.unit())
	t.want(!d.After(end), "a Deadline no later than the end of the lease in the store", "%v later", d.Sub(end))
}

func lostAtDeadline(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithoutRenewal())
	ctx, cancel := locker.WithLock(t.ctx, k)
	defer cancel()
	t.wantAlive(k)
	t.pass(k.TTL() / 2)
	t.wantAlive(k)
	t.wantLost(k, time.Until(k.Deadline())+prompt, locker.ReasonExpired)
	t.want(!time.Now().Before(k.Deadline()), "a loss at Deadline", "%v before it", time.Until(k.Deadline()))
	t.must(within(ctx.Done(), prompt), "the lock's context ended", "it goes on")
	t.wantLostError(k.Release(t.ctx), locker.ReasonExpired)
	if t.can(locker.CapExtend) {
		t.wantLostError(k.Extend(t.ctx, t.ttl), locker.ReasonExpired)
	}
	t.wantFree(k.Key())
}

// errAtFirstCall looks at nothing but Err, and only after the Deadline.
func errAtFirstCall(t *trial) {
	l := t.open()
	t.parallel(20, func(i int) {
		k := t.take(l, t.key(), locker.WithoutRenewal())
		t.passUntil(k.Deadline().Add(time.Duration(i) * time.Microsecond))
		t.wantLostError(k.Err(), locker.ReasonExpired)
	})
}

func lostBeforeNextGrant(t *trial) {
	l, next := t.open(), t.open()
	t.parallel(10, func(int) {
		k := t.take(l, t.key(), locker.WithoutRenewal())
		w := t.wait(next, k.Key())
		n := w.served(k.TTL() + prompt)
		t.wantLostError(k.Err())
		t.want(!w.at.Before(k.Deadline()), "the next grant after the Deadline", "%v before it", k.Deadline().Sub(w.at))
		t.release(n)
	})
}

func forced(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithTTL(4*t.ttl))
	t.pass(t.ttl / 10)
	t.forceRelease(k.Key())
	// The next renewal, after a third, tells at the latest. Two thirds are well
	// before the Deadline, where every holder would give up.
	t.wantLost(k, k.TTL()*2/3, locker.ReasonExpired, locker.ReasonTaken, locker.ReasonSession)
	if t.can(locker.CapExtend) {
		t.wantLostError(k.Extend(t.ctx, t.ttl))
	}
	t.wantLostError(k.Release(t.ctx))
	t.wantFree(k.Key())
}

func maxHold(t *trial) {
	l := t.open()
	t.parallel(2, func(i int) {
		hold := []time.Duration{t.ttl / 2, t.ttl * 9 / 4}[i] // within the first lease, and beyond it
		start := time.Now()
		k := t.take(l, t.key(), locker.WithMaxHold(hold))
		granted := time.Now()
		t.wantLost(k, hold+prompt, locker.ReasonMaxHold)
		t.want(time.Since(start) >= hold, fmt.Sprintf("a hold of %v", hold), "lost after %v", time.Since(start))
		t.want(time.Since(granted) < hold+prompt, fmt.Sprintf("a hold of at most %v", hold), "lost after %v", time.Since(granted))
		next := t.wait(t.bystander(), k.Key()).served(k.TTL() + prompt)
		t.wantLostError(k.Release(t.ctx), locker.ReasonMaxHold)
		t.wantAlive(next)
		t.release(next)
	})
	for _, d := range []time.Duration{0, -1} {
		_, err := t.try(t.ctx, l, t.key(), locker.WithMaxHold(d))
		t.wantError(err, locker.ErrInvalid)
	}
}

func lostByClose(t *trial) {
	l := t.open()
	k := t.take(l, t.key(), locker.WithTTL(long))
	closing := t.start(func() { _ = l.Close(t.ctx) })
	t.wantLost(k, prompt, locker.ReasonClosed)
	t.wantLostError(k.Release(t.ctx), locker.ReasonClosed)
	t.must(within(closing, prompt), "Close to return when all is released", "it has not")
	t.wantFree(k.Key())
}

func released(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	t.wantAlive(k)
	t.release(k)
	t.want(isClosed(k.Done()), "Done closed", "Done is open")
	t.wantError(k.Err(), locker.ErrReleased)
	t.wantNoMatch(k.Err(), locker.ErrLost)
	err := k.Extend(t.ctx, t.ttl)
	t.wantError(err, locker.ErrReleased)
	t.wantNoMatch(err, locker.ErrLost)
	t.wantFree(k.Key())
	t.wantError(k.Err(), locker.ErrReleased) // for good
}

func contextOfLostLock(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithoutRenewal())
	ctx, cancel := locker.WithLock(t.ctx, k)
	defer cancel()
	t.want(ctx.Err() == nil, "a live context under a live lock", "Err: %v", ctx.Err())
	t.must(within(ctx.Done(), k.TTL()+prompt), "the end of the context with the lock", "it goes on")
	t.wantLostError(context.Cause(ctx), locker.ReasonExpired)
	after, cancelAfter := locker.WithLock(t.ctx, k)
	defer cancelAfter()
	t.want(isClosed(after.Done()), "an ended context for a lock that is lost already", "it goes on")
	t.wantLostError(context.Cause(after), locker.ReasonExpired)
}

func contextOfReleasedLock(t *trial) {
	l := t.open()
	k := t.take(l, t.key())
	ctx, cancel := locker.WithLock(t.ctx, k)
	defer cancel()
	t.release(k)
	t.must(within(ctx.Done(), prompt), "the end of the context with the lock", "it goes on")
	t.wantError(context.Cause(ctx), locker.ErrReleased)

	k = t.take(l, t.key())
	parent, end := context.WithCancelCause(t.ctx)
	ctx, cancelChild := locker.WithLock(parent, k)
	defer cancelChild()
	end(errCause)
	t.must(within(ctx.Done(), prompt), "the end of the context with its parent", "it goes on")
	t.wantError(context.Cause(ctx), errCause)
	t.wantAlive(k)

	ctx, cancel = locker.WithLock(t.ctx, k)
	cancel()
	t.want(isClosed(ctx.Done()), "a context that its cancel ends", "it goes on")
	t.wantAlive(k)
	t.wantHeldBy(k)
	t.release(k)
}

func doJoinsErrors(t *trial) {
	l, key := t.open(), t.key()
	errBody := errors.New("the body's error")
	err := locker.Do(t.ctx, l, key, func(ctx context.Context, k locker.Lock) error {
		t.wantAlive(k)
		t.wantHeldBy(k)
		ran, err := locker.TryDo(ctx, l, key, func(context.Context, locker.Lock) error { return nil }, locker.WithTTL(t.ttl))
		t.want(!ran, "no second body under the lock", "it ran")
		t.wantError(err, locker.ErrHeld)
		return nil
	}, locker.WithTTL(t.ttl))
	t.want(err == nil, "nil", "Do: %v", err)
	t.wantFree(key)

	ran, err := locker.TryDo(t.ctx, l, key, func(context.Context, locker.Lock) error { return errBody }, locker.WithTTL(t.ttl))
	t.want(ran, "the body run: the key is free", "it did not run")
	t.wantError(err, errBody)
	t.wantNoMatch(err, locker.ErrLost, locker.ErrHeld)

	err = locker.Do(t.ctx, l, key, func(ctx context.Context, k locker.Lock) error {
		t.must(within(ctx.Done(), k.TTL()+prompt), "the end of the body's context with the lock", "it goes on")
		return errBody
	}, locker.WithTTL(t.ttl), locker.WithoutRenewal())
	t.wantError(err, errBody, locker.ErrLost)
	t.wantFree(key)
}

func doPanics(t *trial) {
	l, key := t.open(), t.key()
	body := func(end func()) func(context.Context, locker.Lock) error {
		return func(context.Context, locker.Lock) error {
			end()
			return nil
		}
	}
	<-t.start(func() {
		defer func() {
			v := recover()
			t.want(v == "panic of the body", "the body's panic again", "recovered: %v", v)
		}()
		_ = locker.Do(t.ctx, l, key, body(func() { panic("panic of the body") }), locker.WithTTL(long))
	})
	t.wantFree(key)
	<-t.start(func() {
		_ = locker.Do(t.ctx, l, key, body(runtime.Goexit), locker.WithTTL(long))
	})
	t.wantFree(key)
}

// lossPushed takes a key away from a holder whose next renewal is far.
func lossPushed(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	start := time.Now()
	t.forceRelease(k.Key())
	t.wantLost(k, prompt, locker.ReasonExpired, locker.ReasonTaken, locker.ReasonSession)
	t.figure("told of the loss by push", time.Since(start))
	t.wantLostError(k.Release(t.ctx))
	t.wantFree(k.Key())
}
