package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

const (
	ruleWoken  = "Waiters are pushed, with a fall-back timed by the holder's remaining TTL. A crashed holder, a lost subscription, an expiry without any message all still wake the waiter."
	ruleNoPoll = "Waiters are pushed; never a fixed-rate poll per waiter."
	ruleOne    = "One locker has one remote waiter per key, whatever the number of goroutines."
	ruleLine   = "Local waiters are FIFO. TryAcquire does not overtake local waiters."
	ruleLeave  = "A cancelled wait returns promptly, leaves no residue in the store, and does not swallow the wake-up of the next in line."
)

var waitCases = []Case{{
	ID: "W1/killed-holder", Rule: ruleWoken, Needs: locker.CapExclusive, Uses: PartProcesses, Cites: []string{"C53"},
	run: killedHolder,
}, {
	ID: "W1/expiry", Rule: ruleWoken, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C53", "C72"},
	run: expiryWakes,
}, {
	ID: "W1/expiry-after-renewals", Rule: ruleWoken, Needs: locker.CapExclusive | locker.CapExpiry, Cites: []string{"C48", "C53"},
	run: expiryAfterRenewals,
}, {
	ID: "W1/forced", Rule: ruleWoken, Needs: locker.CapExclusive | locker.CapInspect, Cites: []string{"C33"},
	run: forcedWakes,
}, {
	ID: "W1/no-polling", Rule: ruleNoPoll, Needs: locker.CapExclusive | locker.CapWakeUp, Uses: PartRequests, Cites: []string{"C60"},
	run: func(t *trial) { requestsOfWaiters(t, 1, 20) },
}, {
	ID: "W2/one-remote-waiter", Rule: ruleOne, Needs: locker.CapExclusive | locker.CapWakeUp, Uses: PartRequests, Cites: []string{"C60"},
	run: func(t *trial) { requestsOfWaiters(t, 100, 40) },
}, {
	ID: "W2/first-come-first-served", Rule: ruleLine, Needs: locker.CapExclusive,
	run: localOrder,
}, {
	ID: "W2/no-overtaking", Rule: ruleLine, Needs: locker.CapExclusive,
	run: noOvertaking,
}, {
	ID: "W2/no-starvation", Rule: "Under constant contention every waiter gets its turn.", Level: Should,
	Needs: locker.CapExclusive | locker.CapWakeUp, Cites: []string{"C62"},
	run: noStarvation,
}, {
	ID: "W3/prompt", Rule: ruleLeave, Needs: locker.CapExclusive, Cites: []string{"C04", "C05"},
	run: cancelledPromptly,
}, {
	ID: "W3/no-residue", Rule: ruleLeave, Needs: locker.CapExclusive, Uses: PartNames, Cites: []string{"C55"},
	run: noResidue,
}, {
	ID: "W3/next-of-same-locker", Rule: ruleLeave, Needs: locker.CapExclusive, Cites: []string{"C04"},
	run: func(t *trial) {
		l := t.open()
		cancelAtRelease(t, t.open(), l, l)
	},
}, {
	ID: "W3/next-of-other-locker", Rule: ruleLeave, Needs: locker.CapExclusive | locker.CapWakeUp, Cites: []string{"C04"},
	run: func(t *trial) { cancelAtRelease(t, t.open(), t.open(), t.open()) },
}, {
	ID: "W3/head-leaves", Rule: ruleLeave, Needs: locker.CapExclusive, Cites: []string{"C04"},
	run: headLeaves,
}, {
	ID: "W5/dead-waiters", Rule: "A dead waiter at the head costs its reservation, not the TTL; a cancelled one is passed on.",
	Needs: locker.CapExclusive, Uses: PartProcesses, Cites: []string{"C56"},
	run: deadWaiters,
}}

func killedHolder(t *trial) {
	key := t.key()
	c := t.child()
	held := c.acquire(key, t.ttl)
	t.wantHeld(key)
	w := t.waitInLine(t.open(), key)
	killed := time.Now()
	c.kill()
	k := w.served(held.ttl + prompt)
	t.figure("takeover after kill -9", w.at.Sub(killed))
	if t.can(locker.CapToken) {
		t.want(k.Token() > held.Token(), fmt.Sprintf("a token over %d, the dead holder's", held.Token()), "token %d", k.Token())
	}
	t.release(k)
}

// expiryWakes waits for locks that are neither renewed nor released.
func expiryWakes(t *trial) {
	l, other := t.open(), t.open()
	t.parallel(4, func(i int) {
		k := t.take(l, t.key(), locker.WithoutRenewal())
		w := t.wait([]locker.Locker{l, other}[i%2], k.Key())
		next := w.served(k.TTL() + prompt)
		t.want(!w.at.Before(k.Deadline()), "the next grant after the Deadline", "%v before it", k.Deadline().Sub(w.at))
		t.release(next)
	})
}

// expiryAfterRenewals: what a waiter heard about the holder's lease is out of
// date by the time it ends.
func expiryAfterRenewals(t *trial) {
	l, other := t.open(), t.open()
	t.parallel(4, func(i int) {
		k := t.take(l, t.key(), locker.WithMaxHold(t.ttl*3/2))
		w := t.wait([]locker.Locker{l, other}[i%2], k.Key())
		t.release(w.served(t.ttl*3/2 + k.TTL() + prompt))
	})
}

func forcedWakes(t *trial) {
	k := t.take(t.open(), t.key())
	w := t.waitInLine(t.open(), k.Key())
	t.forceRelease(k.Key())
	t.release(w.served(k.TTL() + prompt))
}

// requestsOfWaiters counts what a crowd of one locker costs during one TTL, in
// which the holder renews three times, and until it is cancelled. A store whose pushes
// can get lost may be asked for the key once a second.
func requestsOfWaiters(t *trial, waiters int, most int64) {
	key := t.key()
	k := t.take(t.open(), key)
	l := t.open()
	t.release(t.take(l, t.key())) // connect
	before := t.suite.h.Requests()
	var ws []*waiter
	for range waiters {
		ws = append(ws, t.wait(l, key))
	}
	t.pass(k.TTL())
	for _, w := range slices.Backward(ws) {
		w.cancel(nil)
		w.failed(prompt)
	}
	sent := t.suite.h.Requests() - before
	most += int64(k.TTL() / time.Second)
	t.want(sent <= most, fmt.Sprintf("at most %d requests", most), "%d requests for %d waiters in %v", sent, waiters, k.TTL())
	t.release(k)
}

// localOrder lets waiters come one after another. Whether one of them was in
// line before the next one called is not visible, and a busy machine can mix
// them up: so a wrong order counts if it comes again and again.
func localOrder(t *trial) {
	l := t.open()
	const n = 8
	var order []int
	for range 3 {
		key := t.key()
		k := t.take(l, key, locker.WithTTL(long))
		order = nil
		var mu sync.Mutex
		var served []<-chan struct{}
		for i := range n {
			w := t.waitInLine(l, key, locker.WithTTL(long))
			served = append(served, t.start(func() {
				k := w.served(2 * prompt)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				t.release(k)
			}))
		}
		t.release(k)
		for _, s := range served {
			t.must(within(s, 2*prompt), "all waiters served", "some are not")
		}
		if slices.IsSorted(order) {
			return
		}
	}
	t.want(false, "the order of the calls in one of 3 tries", "served in the order %v", order)
}

// noOvertaking lets attempts rush for a key that is released to a waiter. As in
// localOrder, the waiter may have come too late: so it has three tries.
func noOvertaking(t *trial) {
	holder, l := t.open(), t.open()
	overtaken := 0
	for range 3 {
		key := t.key()
		k := t.take(holder, key, locker.WithTTL(long))
		w := t.waitInLine(l, key, locker.WithTTL(long))
		_, err := t.try(t.ctx, l, key)
		t.wantError(err, locker.ErrHeld)
		released := t.start(func() { t.release(k) })
		early := false
		for !isClosed(w.done) && !early {
			k, err := t.try(t.ctx, l, key, locker.WithTTL(long))
			if err != nil {
				t.must(t.wantError(err, locker.ErrHeld), "ErrHeld", "TryAcquire: %v", err)
				t.pass(time.Millisecond)
				continue
			}
			early = !isClosed(w.done)
			t.release(k)
		}
		<-released
		t.release(w.served(prompt))
		if !early {
			return
		}
		overtaken++
	}
	t.want(false, "the waiter served first in one of 3 tries", "overtaken by TryAcquire %d times", overtaken)
}

// noStarvation lets clients hold, rest and come again.
func noStarvation(t *trial) {
	const n = 8
	key := t.key()
	var mu sync.Mutex
	var longest time.Duration
	served := make([]int, n)
	lockers := t.openN(n)
	for _, l := range lockers {
		t.connected(l)
	}
	end := time.Now().Add(time.Second)
	t.parallel(n, func(i int) {
		for time.Now().Before(end) {
			start := time.Now()
			k, err := t.acquire(t.ctx, lockers[i], key)
			t.must(err == nil, "the lock, sooner or later", "Acquire: %v", err)
			mu.Lock()
			longest = max(longest, time.Since(start))
			served[i]++
			mu.Unlock()
			t.pass(2 * time.Millisecond)
			t.release(k)
		}
	})
	t.want(slices.Min(served) > 0, "a turn for every client", "turns %v", served)
	const most = 500 * time.Millisecond
	t.want(longest < most, fmt.Sprintf("no wait over %v while %d clients come and go every few ms", most, n), "%v, turns %v", longest, served)
}

func cancelledPromptly(t *trial) {
	l, key := t.open(), t.key()
	k := t.take(l, key, locker.WithTTL(long))
	for _, l := range []locker.Locker{l, t.open()} {
		var ws []*waiter
		for range 8 {
			ws = append(ws, t.wait(l, key))
		}
		t.pass(20 * time.Millisecond)
		for _, w := range ws {
			start := time.Now()
			w.cancel(nil)
			t.wantError(w.failed(prompt), context.Canceled)
			t.want(w.at.Sub(start) < prompt, "a wait that ends when it is cancelled", "%v later", w.at.Sub(start))
		}
	}
	t.wantAlive(k)
	t.release(k)
	t.wantFree(key)
}

func noResidue(t *trial) {
	lockers := t.openN(2)
	for _, l := range lockers {
		t.release(t.take(l, t.key()))
	}
	none := t.residue()
	key := t.key()
	k := t.take(t.open(), key, locker.WithTTL(long))
	for i := range 20 {
		w := t.wait(lockers[i%2], key, locker.WithTTL(long))
		t.pass(time.Duration(i) * time.Millisecond)
		w.cancel(nil)
		w.failed(prompt)
	}
	t.release(k)
	none()
}

// cancelAtRelease cancels the first waiter at the very moment of the release.
// Either it has the lock, or the second one gets it; there is no third way.
func cancelAtRelease(t *trial, holder, first, second locker.Locker) {
	for i := range 50 {
		key := t.key()
		k := t.take(holder, key, locker.WithTTL(long))
		w1 := t.wait(first, key, locker.WithTTL(long))
		if i%10 == 0 {
			t.pass(10 * time.Millisecond)
		}
		w2 := t.wait(second, key, locker.WithTTL(long))
		t.pass(time.Millisecond)
		released := t.start(func() { t.release(k) })
		if i%2 == 0 {
			t.pass(time.Duration(i) * 20 * time.Microsecond)
		}
		w1.cancel(nil)
		t.must(within(w1.done, prompt), "an outcome for the cancelled wait", "none after %v", prompt)
		if w1.lock != nil {
			t.release(w1.lock)
		}
		t.release(w2.served(prompt))
		<-released
		t.wantFree(key)
	}
}

// headLeaves cancels waiters from the head of the line, then releases.
func headLeaves(t *trial) {
	holder, l := t.open(), t.open()
	for range 5 {
		key := t.key()
		k := t.take(holder, key, locker.WithTTL(long))
		var ws []*waiter
		for range 5 {
			ws = append(ws, t.waitInLine(l, key, locker.WithTTL(long)))
		}
		for _, w := range ws[:4] {
			w.cancel(nil)
			w.failed(prompt)
		}
		t.pass(20 * time.Millisecond) // the last one is the head now
		t.release(k)
		t.release(ws[4].served(prompt))
	}
}

func deadWaiters(t *trial) {
	key := t.key()
	k := t.take(t.open(), key)
	for range 3 {
		c := t.child()
		c.queue(key, t.ttl)
		t.pass(20 * time.Millisecond)
		c.kill()
	}
	w := t.waitInLine(t.open(), key)
	t.release(k)
	t.release(w.served(k.TTL() + prompt))
}
