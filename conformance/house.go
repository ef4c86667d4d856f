package conformance

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
)

const (
	ruleClose = "Close refuses new acquires, ends waiters (ErrClosed), closes Done of live grants (ErrLost, reason closed), waits for their holders' Release until ctx ends, then releases the rest."
	ruleList  = "List shows every key that is held, by its name and with its holder, while others take and release; it stops when it is told to, or with ctx."
	ruleLeaks = "No goroutine, connection, lease, subscription or map entry outlives its use."
)

var houseCases = []Case{{
	ID: "House/close", Rule: ruleClose, Cites: []string{"C51"},
	run: closeEndsAll,
}, {
	ID: "House/close-waits", Rule: ruleClose, Cites: []string{"C51"},
	run: closeWaits,
}, {
	ID: "House/close-releases-the-rest", Rule: ruleClose, Cites: []string{"C51"},
	run: closeReleasesTheRest,
}, {
	ID: "House/close-twice", Rule: ruleClose, Cites: []string{"C51"},
	run: closeTwice,
}, {
	ID: "House/close-during-acquire", Rule: ruleClose, Cites: []string{"C51"},
	run: closeDuringAcquire,
}, {
	ID: "House/nothing-left", Rule: ruleLeaks, Uses: PartNames, Cites: []string{"C55", "C70", "C123"},
	run: nothingLeft,
}, {
	ID: "House/goroutines", Rule: ruleLeaks, Cites: []string{"C36"},
	run: goroutinesEnd,
}, {
	ID: "House/list", Rule: ruleList, Needs: locker.CapInspect, Except: locker.CapSessionHolder,
	run: listShowsWhatIsHeld,
}, {
	ID: "House/list-stops", Rule: ruleList, Needs: locker.CapInspect,
	run: listStops,
}, {
	ID: "House/many-locks", Rule: "Bounded resources per locker: no goroutine per held lock.", Except: locker.CapSessionPerLock, Cites: []string{"C132"},
	run: manyLocks,
}, {
	ID: "House/usable-after-loss", Rule: "The locker can acquire again as soon as the store allows; the old handle stays dead.", Cites: []string{"C49"},
	run: usableAfterLoss,
}}

func closeEndsAll(t *trial) {
	l, other := t.open(), t.open()
	var held []locker.Lock
	var waiters []*waiter
	for range 5 {
		k := t.take(l, t.key(), locker.WithTTL(long))
		held = append(held, k)
		theirs := t.take(other, t.key(), locker.WithTTL(long))
		waiters = append(waiters, t.wait(l, k.Key()), t.wait(l, theirs.Key()))
	}
	t.pass(20 * time.Millisecond)
	closing := t.start(func() { _ = l.Close(t.ctx) })
	for _, w := range waiters {
		err := w.failed(prompt)
		t.wantError(err, locker.ErrClosed)
		t.wantNoMatch(err, context.Canceled, context.DeadlineExceeded)
	}
	for _, acquire := range []func(context.Context, locker.Locker, string, ...locker.Option) (locker.Lock, error){t.acquire, t.try} {
		for _, key := range []string{t.key(), held[0].Key()} {
			_, err := acquire(t.ctx, l, key)
			t.wantError(err, locker.ErrClosed)
			t.wantNoMatch(err, locker.ErrHeld)
		}
	}
	for _, k := range held {
		t.wantLost(k, prompt, locker.ReasonClosed)
		t.wantLostError(k.Release(t.ctx), locker.ReasonClosed)
		t.wantFree(k.Key())
	}
	t.must(within(closing, prompt), "Close to return when all is released", "it has not")
}

func closeWaits(t *trial) {
	l := t.open()
	k := t.take(l, t.key(), locker.WithTTL(long))
	closing := t.start(func() { _ = l.Close(t.ctx) })
	t.wantLost(k, prompt, locker.ReasonClosed)
	t.want(!within(closing, t.ttl/4), "Close to wait for the holder's Release", "it has returned")
	t.wantHeldBy(k) // the holder may still be at work
	t.wantLostError(k.Release(t.ctx), locker.ReasonClosed)
	t.must(within(closing, prompt), "Close to return when all is released", "it has not")
	t.wantFree(k.Key())
}

func closeReleasesTheRest(t *trial) {
	l := t.open()
	var held []locker.Lock
	for range 5 {
		held = append(held, t.take(l, t.key(), locker.WithTTL(long)))
	}
	ctx, cancel := context.WithCancel(t.ctx)
	closing := t.start(func() {
		err := l.Close(ctx)
		t.want(err == nil, "nil: all was given back", "Close: %v", err)
	})
	t.wantLost(held[0], prompt, locker.ReasonClosed)
	cancel()
	t.must(within(closing, prompt+5*time.Second), "Close to release what its holders did not", "it has not returned")
	for _, k := range held {
		t.wantLost(k, 0, locker.ReasonClosed)
		t.wantFree(k.Key())
		t.wantLostError(k.Release(t.ctx), locker.ReasonClosed)
	}
}

func closeTwice(t *trial) {
	l := t.open()
	t.release(t.take(l, t.key()))
	k := t.take(l, t.key(), locker.WithTTL(long))
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	err := l.Close(over)
	t.want(err == nil, "nil: all was given back", "Close: %v", err)
	t.parallel(16, func(i int) { // a select with two ready cases chooses at random
		err := l.Close([]context.Context{over, t.ctx}[i%2])
		t.want(err == nil, "nil again", "Close: %v", err)
	})
	t.wantFree(k.Key())
	next := t.take(t.open(), k.Key(), locker.WithTTL(long))
	closeNow(t.ctx, l)
	t.wantLostError(k.Release(t.ctx), locker.ReasonClosed)
	t.wantHeldBy(next)
	t.release(next)
}

// closeDuringAcquire closes Lockers at every point of acquires of free keys.
func closeDuringAcquire(t *trial) {
	t.parallel(10, func(i int) {
		l := t.open()
		t.release(t.take(l, t.key()))
		var keys []string
		for range 8 {
			keys = append(keys, t.key())
		}
		acquiring := t.start(func() {
			t.parallel(len(keys), func(i int) {
				k, err := t.acquire(t.ctx, l, keys[i], locker.WithTTL(long))
				if err != nil {
					t.wantError(err, locker.ErrClosed)
					return
				}
				t.must(within(k.Done(), prompt), "Done closed by Close", "Done is open")
				t.wantLostError(k.Release(t.ctx), locker.ReasonClosed)
			})
		})
		t.pass(time.Duration(i) * 100 * time.Microsecond)
		closing := t.start(func() { _ = l.Close(t.ctx) })
		t.must(within(acquiring, 2*prompt), "an end of all acquires", "some go on")
		t.must(within(closing, prompt), "Close to return when all is released", "it has not")
		for _, key := range keys {
			t.wantFree(key)
		}
	})
}

// cycles goes round in all the ways that end without a lock. It leaves no client
// open, which can have goroutines for each server.
func (t *trial) cycles(l locker.Locker, n int) {
	holder, key := t.open(), t.key()
	k := t.take(holder, key, locker.WithTTL(long))
	for i := range n {
		t.release(t.take(l, t.key(), locker.WithTTL(long)))
		_, err := t.try(t.ctx, l, key)
		t.wantError(err, locker.ErrHeld)
		_, err = t.try(t.ctx, l, "")
		t.wantError(err, locker.ErrInvalid)
		w := t.wait(l, key)
		if i%2 == 0 {
			t.pass(time.Millisecond)
		}
		w.cancel(nil)
		w.failed(prompt)
		ctx, cancel := locker.WithLock(t.ctx, k)
		cancel()
		<-ctx.Done()
	}
	t.release(k)
	closeNow(t.ctx, holder)
}

func nothingLeft(t *trial) {
	l := t.open()
	t.cycles(l, 1)
	none := t.residue()
	t.cycles(l, 50)
	k := t.take(l, t.key(), locker.WithoutRenewal()) // and one that expires
	t.wantLost(k, k.TTL()+prompt)
	t.wantFree(k.Key())
	none()
	t.cycles(l, 1)
	closeNow(t.ctx, l)
	none()
}

// goroutinesEnd goes round often enough that one goroutine left behind by every
// tenth cycle is seen, and a driver's own few are not.
func goroutinesEnd(t *trial) {
	const cycles = 200
	l := t.open()
	t.bystander()
	t.cycles(l, 10)
	before := t.goroutines()
	t.cycles(l, cycles)
	for range 5 { // Lockers that come and go
		l := t.open()
		t.cycles(l, 1)
		closeNow(t.ctx, l)
	}
	t.wantGoroutines(before + cycles/10)
}

// goroutines counts goroutines, when those that are about to end have had time.
// The runtime's count can be off for a moment, in both directions.
func (t *trial) goroutines() int {
	n := 0
	t.pass(50 * time.Millisecond)
	for range 5 {
		t.pass(time.Millisecond)
		n = max(n, runtime.NumGoroutine())
	}
	return n
}

func (t *trial) wantGoroutines(most int) {
	var n int
	ok := t.eventually(func() bool {
		n = runtime.NumGoroutine()
		return n <= most
	})
	t.want(ok, fmt.Sprintf("at most %d goroutines", most), "%d goroutines:\n%s", n, stacks())
}

// listed is what l lists of the trial's own keys.
func (t *trial) listed(l locker.Locker) map[string]locker.Holding {
	seen := make(map[string]locker.Holding)
	err := t.inspector(l).List(t.ctx, func(key string, h locker.Holding) bool {
		if strings.HasPrefix(key, t.name) {
			seen[key] = h
		}
		return true
	})
	t.must(err == nil, "nil", "List: %v", err)
	return seen
}

func listShowsWhatIsHeld(t *trial) {
	l := t.open()
	var held []locker.Lock
	for _, text := range []string{"*", "?", "[a]", "{a}", "a}b", `\`, "a:fence", "ä b"} {
		held = append(held, t.take(l, t.named(text), locker.WithTTL(long), locker.WithLabel(text)))
	}
	for range 100 {
		held = append(held, t.take(l, t.key(), locker.WithTTL(long)))
	}
	free, over := t.take(l, t.key()), t.take(l, t.key(), locker.WithoutRenewal())
	t.release(free)
	t.wantLost(over, over.TTL()+prompt)
	t.wantFree(over.Key())

	view := t.inspector(t.bystander())
	seen := t.listed(t.bystander())
	for _, k := range held {
		h, ok := seen[k.Key()]
		t.want(ok, "every key that is held", "%q is not listed", k.Key())
		one, err := view.Inspect(t.ctx, k.Key())
		t.want(err == nil && h.Holder == one.Holder && h.Token == one.Token, "what Inspect shows", "%+v, Inspect: %+v, %v", h, one, err)
		t.want(h.Remaining > 0 && h.Remaining <= long, "what remains of the lease", "%v", h.Remaining)
	}
	t.want(len(seen) == len(held), "no other keys", "%d keys, %d held", len(seen), len(held))
	for _, k := range held {
		t.release(k)
	}
	t.want(len(t.listed(t.bystander())) == 0, "no key when all are released", "some")
}

func listStops(t *trial) {
	l := t.open()
	for range 5 {
		t.take(l, t.key(), locker.WithTTL(long))
	}
	view := t.inspector(t.bystander())
	calls := 0
	listing := t.start(func() {
		err := view.List(t.ctx, func(string, locker.Holding) bool {
			calls++
			t.release(t.take(l, t.key())) // the store is not locked meanwhile
			return false
		})
		t.want(err == nil, "nil: it was told to stop", "List: %v", err)
	})
	t.must(within(listing, 2*prompt), "an end of List", "it goes on")
	t.want(calls == 1, "no call after yield returned false", "%d calls", calls)

	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	err := view.List(ctx, func(string, locker.Holding) bool {
		t.fail("a call of yield", "none under a context that has ended")
		return true
	})
	t.wantError(err, context.Canceled)
}

func manyLocks(t *trial) {
	const n = 1000
	ttl := max(3*t.ttl, 3*time.Second) // a busy machine takes its time for so many
	l := t.open()
	t.release(t.take(l, t.key(), locker.WithTTL(ttl)))
	before := t.goroutines()
	held := make([]locker.Lock, n)
	var next atomic.Int64
	t.parallel(16, func(int) {
		for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
			held[i] = t.take(l, t.key(), locker.WithTTL(ttl))
		}
	})
	t.wantGoroutines(before + n/10)
	first := make([]time.Time, n)
	for i, k := range held {
		first[i] = k.Deadline()
	}
	t.pass(ttl * 2 / 3)
	for i, k := range held {
		t.wantAlive(k)
		t.want(k.Deadline().After(first[i]), "every lock renewed", "one of %d not renewed after %v", n, ttl*2/3)
	}
	t.parallel(16, func(i int) {
		for ; i < n; i += 16 {
			t.release(held[i])
		}
	})
}

func usableAfterLoss(t *trial) {
	l := t.open()
	old := t.take(l, t.key(), locker.WithoutRenewal())
	t.wantLost(old, old.TTL()+prompt, locker.ReasonExpired)
	k := t.take(l, old.Key(), locker.WithTTL(long))
	t.want(k.Owner() != old.Owner(), "another owner id", "%q again", k.Owner())
	t.wantLostError(old.Release(t.ctx))
	t.wantLostError(old.Err())
	t.wantAlive(k)
	t.wantHeldBy(k)
	t.release(k)
	t.wantFree(k.Key())
}
