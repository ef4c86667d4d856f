package conformance

import (
	"context"
	"time"

	"github.com/go-locker/locker"
)

const (
	ruleThisGrant = "Acts on this grant only. Nil once released, nil again; ErrLost if it had been lost."
	ruleDetached  = "The work runs detached; the caller waits until ctx ends (an already ended ctx counts as none)."
	ruleShared    = "Where one session or lease serves many locks, the Deadline of a lock without renewal and MaxHold end it all the same, and the others live on."
	rulePush      = "The next waiter is woken by push."
)

var releaseCases = []Case{{
	ID: "R1/twice", Rule: ruleThisGrant, Needs: locker.CapExclusive, Cites: []string{"C23"},
	run: releaseTwice,
}, {
	ID: "R1/at-once", Rule: ruleThisGrant, Needs: locker.CapExclusive, Cites: []string{"C23"},
	run: releaseAtOnce,
}, {
	ID: "R1/late", Rule: ruleThisGrant, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C18", "C19"},
	run: releaseLate,
}, {
	ID: "R1/late-in-same-locker", Rule: ruleThisGrant, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C18", "C94"},
	run: releaseLateInSameLocker,
}, {
	ID: "R1/around-expiry", Rule: ruleThisGrant, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C18"},
	run: releaseAroundExpiry,
}, {
	ID: "R1/forced", Rule: ruleThisGrant, Needs: locker.CapExclusive | locker.CapInspect, Cites: []string{"C18", "C19", "C33"},
	run: releaseForced,
}, {
	ID: "R2/cancelled-context", Rule: ruleDetached, Cites: []string{"C16"},
	run: releaseUnderDeadContext,
}, {
	ID: "R2/after-deadline", Rule: "After Deadline: ErrLost at once.", Cites: []string{"C19"},
	run: releaseAfterDeadline,
}, {
	ID: "R3/other-locker", Rule: rulePush, Needs: locker.CapExclusive | locker.CapWakeUp, Cites: []string{"C60"},
	run: func(t *trial) { handOver(t, t.open(), t.open()) },
}, {
	ID: "R3/same-locker", Rule: rulePush, Needs: locker.CapExclusive,
	run: func(t *trial) {
		l := t.open()
		handOver(t, l, l)
	},
}, {
	ID: "R3/many-waiters", Rule: rulePush, Needs: locker.CapExclusive | locker.CapWakeUp, Cites: []string{"C55"},
	run: manyWaiters,
}, {
	ID: "R4/ends-beside-others", Rule: ruleShared, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C48"},
	run: endsBesideOthers,
}, {
	ID: "R4/lost-session", Rule: "The locks of a session that is lost are lost, all of them and no others; the next ones stand on another session.",
	Needs: locker.CapExclusive | locker.CapPushLoss | locker.CapInspect | locker.CapSessionHolder,
	run:   lostSession,
}}

func releaseTwice(t *trial) {
	l := t.open()
	for _, other := range []locker.Locker{l, t.open()} {
		k := t.take(l, t.key(), locker.WithTTL(long))
		t.release(k)
		t.release(k)
		next := t.take(other, k.Key(), locker.WithTTL(long))
		t.release(k)
		t.wantAlive(next)
		t.wantHeldBy(next)
		t.release(next)
		t.release(k)
		t.wantFree(k.Key())
	}
}

func releaseAtOnce(t *trial) {
	l, other := t.open(), t.open()
	for range 5 {
		k := t.take(l, t.key(), locker.WithTTL(long))
		w := t.waitInLine(other, k.Key(), locker.WithTTL(long))
		t.parallel(8, func(int) { t.release(k) })
		next := w.served(prompt)
		t.wantHeldBy(next)
		t.release(next)
	}
}

func releaseLate(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithoutRenewal())
	next := t.wait(t.open(), k.Key(), locker.WithTTL(long)).served(k.TTL() + prompt)
	for range 2 {
		t.wantLostError(k.Release(t.ctx), locker.ReasonExpired, locker.ReasonTaken)
		t.wantHeldBy(next)
	}
	t.wantAlive(next)
	t.release(next)
}

// releaseLateInSameLocker has the next holder on the same session of the store, if there
// are any.
func releaseLateInSameLocker(t *trial) {
	l := t.open()
	k := t.take(l, t.key(), locker.WithoutRenewal())
	next := t.waitInLine(l, k.Key()).served(k.TTL() + prompt)
	for range 2 {
		t.wantLostError(k.Release(t.ctx), locker.ReasonExpired, locker.ReasonTaken)
		t.wantHeldBy(next)
	}
	t.pass(next.TTL()) // whatever is done about the first one is done by then
	t.wantAlive(next)
	t.wantHeldBy(next)
	t.release(next)
	t.wantFree(next.Key())
}

// releaseAroundExpiry releases just before, at and after the end of the lease,
// while somebody waits for it.
func releaseAroundExpiry(t *trial) {
	l, other := t.open(), t.open()
	t.parallel(21, func(i int) {
		k := t.take(l, t.key(), locker.WithoutRenewal())
		w := t.wait(other, k.Key(), locker.WithTTL(long))
		end := k.Deadline().Add(margin(k.TTL()))
		t.passUntil(end.Add(time.Duration(i-10) * time.Millisecond / 2))
		if err := k.Release(t.ctx); err != nil {
			t.wantError(err, locker.ErrLost)
		}
		next := w.served(k.TTL() + prompt)
		t.wantHeldBy(next)
		t.wantAlive(next)
		t.release(next)
	})
}

func releaseForced(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	t.forceRelease(k.Key())
	next := t.take(t.open(), k.Key(), locker.WithTTL(long))
	// The holder may not know yet. The store does, and tells.
	t.wantLostError(k.Release(t.ctx))
	t.wantHeldBy(next)
	t.wantAlive(next)
	t.release(next)
	t.wantFree(k.Key())
}

func releaseUnderDeadContext(t *trial) {
	l := t.open()
	for _, ctx := range t.deadContexts() {
		for range 10 {
			k := t.take(l, t.key(), locker.WithTTL(long))
			err := k.Release(ctx)
			t.want(err == nil, "nil: the context was over before the call", "Release: %v", err)
			t.wantFree(k.Key())
			t.want(k.Release(ctx) == nil, "nil again", "Release: %v", k.Release(ctx))
		}
	}
	ctx, cancel := context.WithCancel(t.ctx)
	err := locker.Do(ctx, l, t.named("do"), func(context.Context, locker.Lock) error {
		cancel()
		return nil
	}, locker.WithTTL(long))
	t.want(err == nil, "nil", "Do whose ctx ended: %v", err)
	t.wantFree(t.named("do"))
}

func releaseAfterDeadline(t *trial) {
	k := t.take(t.open(), t.key(), locker.WithoutRenewal())
	t.passUntil(k.Deadline())
	start := time.Now()
	t.wantLostError(k.Release(t.ctx), locker.ReasonExpired)
	t.want(time.Since(start) < prompt, "an answer at once", "after %v", time.Since(start))
	t.wantFree(k.Key())
}

// handOver passes one key to and fro. The lease is long, so that no fall-back
// on its end can take the place of the push.
func handOver(t *trial, a, b locker.Locker) {
	key := t.key()
	k := t.take(a, key, locker.WithTTL(long))
	for range 5 {
		w := t.waitInLine(b, key, locker.WithTTL(long))
		t.release(k)
		k = w.served(prompt)
		a, b = b, a
	}
	t.release(k)
}

// manyWaiters stay in line while others give up; every release has to reach
// somebody who is still there.
func manyWaiters(t *trial) {
	key := t.key()
	k := t.take(t.open(), key, locker.WithTTL(long))
	lockers := t.openN(4)
	var stay, leave []*waiter
	for _, ws := range []*[]*waiter{&stay, &leave} {
		for i := range 16 {
			*ws = append(*ws, t.wait(lockers[i%len(lockers)], key, locker.WithTTL(long)))
		}
		t.pass(20 * time.Millisecond)
	}
	t.release(k)
	for _, w := range leave {
		w.cancel(nil)
	}
	a := &arena{t: t}
	t.parallel(len(stay)+len(leave), func(i int) {
		if i < len(leave) {
			w := leave[i]
			<-w.done
			if w.lock != nil { // the grant won over the cancellation
				a.enter(w.lock)
				a.leave(w.lock)
				t.release(w.lock)
			}
			return
		}
		k := stay[i-len(leave)].served(prompt)
		a.enter(k)
		a.leave(k)
		t.release(k)
	})
}

// endsBesideOthers leaves locks to end while another one of their Locker is renewed.
func endsBesideOthers(t *trial) {
	l := t.open()
	kept := t.take(l, t.key())
	t.parallel(2, func(i int) {
		k := t.take(l, t.key(), []locker.Option{locker.WithoutRenewal(), locker.WithMaxHold(t.ttl / 2)}[i])
		t.wantLost(k, k.TTL()+prompt, []locker.Reason{locker.ReasonExpired, locker.ReasonMaxHold}[i])
		next := t.wait(t.bystander(), k.Key()).served(k.TTL() + prompt)
		t.wantLostError(k.Release(t.ctx))
		t.wantAlive(next)
		t.release(next)
	})
	t.pass(kept.TTL())
	t.wantAlive(kept)
	t.wantHeldBy(kept)
	t.release(kept)
}

// lostSession ends the session of one lock. Which others stand on it, the store tells.
func lostSession(t *trial) {
	l := t.open()
	var held []locker.Lock
	for range 8 {
		held = append(held, t.take(l, t.key(), locker.WithTTL(long)))
	}
	theirs := t.take(t.open(), t.key(), locker.WithTTL(long))
	session := t.wantHeldBy(held[0]).Holder
	var down, up []locker.Lock
	for _, k := range append(held, theirs) {
		if t.wantHeldBy(k).Holder == session {
			down = append(down, k)
		} else {
			up = append(up, k)
		}
	}
	t.forceRelease(held[0].Key())
	for _, k := range down {
		t.wantLost(k, prompt, locker.ReasonSession)
		t.wantLostError(k.Release(t.ctx), locker.ReasonSession)
		t.wantFree(k.Key())
	}
	for _, k := range up {
		t.wantAlive(k)
		t.wantHeldBy(k)
		t.release(k)
	}
	again := []locker.Lock{t.take(l, held[0].Key(), locker.WithTTL(long)), t.take(l, t.key())}
	t.pass(2 * t.ttl)
	for _, k := range again {
		t.wantAlive(k)
		t.want(t.wantHeldBy(k).Holder != session, "another session", "HeldError.Holder: %q again", session)
		t.release(k)
		t.wantFree(k.Key())
	}
}
