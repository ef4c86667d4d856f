package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

const (
	ruleUnknown = "Unknown outcomes are undone: after a reset, a lost reply or a time-out the owner-guarded undo runs detached and bounded; the TTL is the last resort."
	ruleOutage  = "Outage is never contention: ErrHeld only when the store said so. (lock, nil) only when the store confirmed; never (nil, nil)."
	ruleLate    = "A grant that arrives when its own lease is already over is not handed out. It is given back; TryAcquire returns an error matching ErrLost (expired), Acquire tries again."
	ruleBounded = "The acquire ctx bounds everything: connecting, waiting for a connection, the request and its answer."
)

var grantFaults = []Case{{
	ID: "G3/token-after-restart", Rule: "A fencing token is larger than every earlier token of that key, across restarts of the server too.",
	Needs: locker.CapToken, Uses: PartServer, Cites: []string{"C127", "C90"},
	run: tokenRisesAfterRestart,
}, {
	ID: "G4/lost-reply", Rule: ruleUnknown, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C01"},
	run: lostReply,
}, {
	ID: "G4/cancelled-in-flight", Rule: ruleUnknown, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C02"},
	run: cancelledInFlight,
}, {
	ID: "G6/unreachable", Rule: ruleBounded, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C06", "C08"},
	run: unreachable,
}, {
	ID: "G7/outage", Rule: ruleOutage, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C09", "C10"},
	run: outageIsNotHeld,
}, {
	ID: "G7/cut-anywhere", Rule: ruleOutage, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C10", "C01"},
	run: cutAnywhere,
}, {
	ID: "G8/late-grant", Rule: ruleLate, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C12"},
	run: lateGrant,
}}

func tokenRisesAfterRestart(t *trial) {
	l, key := t.open(), t.key()
	var last uint64
	for range 3 {
		k := t.take(l, key)
		t.want(k.Token() > last, fmt.Sprintf("a token over %d, the one before the restart", last), "token %d", k.Token())
		last = k.Token()
		t.release(k)
		t.killServer()
		t.restartServer()
		t.recovered(l)
	}
}

// lostReply loses the answers to requests that were served. The lease is long, so
// that nothing but the undo frees the key.
func lostReply(t *trial) {
	l, net := t.openVia()
	t.connected(l)
	struck := 0
	for i := range 10 {
		key := t.key()
		ctx, cancel := t.forASecond()
		before := net.Hits()
		net.DropReplies(1, nil)
		acquire := t.try
		if i%2 == 1 {
			acquire = t.acquire
		}
		k, err := acquire(ctx, l, key, locker.WithTTL(long))
		net.DropReplies(0, nil)
		struck += net.Hits() - before
		cancel()
		if k != nil {
			t.wantHeldBy(k)
			t.release(k)
		} else {
			t.wantNoMatch(err, locker.ErrHeld, locker.ErrLost)
		}
		t.wantFree(key)
	}
	t.want(struck > 0, "a reply lost at least once", "none")
}

// cancelledInFlight ends the caller's context at every point of a request's way.
// All that is sent is late by the same time, so the undo comes after what it undoes.
func cancelledInFlight(t *trial) {
	const way = 40 * time.Millisecond
	l, net := t.openVia()
	t.connected(l)
	for i, fault := range []faultnet.Fault{{DelayReplies: way}, {DelayRequests: way}} {
		net.Set(fault)
		t.parallel(12, func(n int) {
			key := t.key()
			ctx, cancel := context.WithTimeout(t.ctx, way*time.Duration(n)/10)
			defer cancel()
			acquire := t.try
			if (n+i)%2 == 1 {
				acquire = t.acquire
			}
			k, err := acquire(ctx, l, key, locker.WithTTL(long))
			if k != nil {
				t.release(k)
			} else {
				t.wantError(err, context.DeadlineExceeded)
				t.wantNoMatch(err, locker.ErrHeld)
			}
			t.wantFree(key)
		})
	}
}

// unreachable is asked of clients with a connection and of new ones.
func unreachable(t *trial) {
	t.parallel(2*len(outages), func(i int) {
		l, net := t.openVia()
		if i%2 == 0 {
			t.connected(l)
		}
		outage(net, outages[i/2])
		for _, acquire := range []func(context.Context, locker.Locker, string, ...locker.Option) (locker.Lock, error){t.acquire, t.try} {
			ctx, cancel := context.WithTimeoutCause(t.ctx, 300*time.Millisecond, errCause)
			start := time.Now()
			k, err := acquire(ctx, l, t.key())
			took := time.Since(start)
			ended := ctx.Err() != nil
			cancel()
			t.must(k == nil, "an error", "a lock")
			t.want(took < prompt, "an answer soon after the end of the context", "%v later", took-300*time.Millisecond)
			if ended {
				t.wantError(err, context.DeadlineExceeded, errCause)
			}
			t.wantNoMatch(err, locker.ErrHeld, locker.ErrLost)
		}
	})
}

// outageIsNotHeld asks for free keys, and for a held one that the store cannot say
// so about, under every fault.
func outageIsNotHeld(t *trial) {
	held := t.take(t.open(), t.key(), locker.WithTTL(long))
	t.parallel(len(outages), func(i int) {
		l, net := t.openVia()
		t.connected(l)
		_, err := t.try(t.ctx, l, held.Key())
		t.wantError(err, locker.ErrHeld)
		outage(net, outages[i])
		for _, key := range []string{t.key(), held.Key()} {
			ctx, cancel := context.WithTimeout(t.ctx, 200*time.Millisecond)
			k, err := t.try(ctx, l, key)
			cancel()
			t.must(k == nil, "an error", "a lock")
			t.wantNoMatch(err, locker.ErrHeld)
		}
		net.Set(faultnet.None)
		net.Reset()
		t.connected(l)
		// Of a store with several servers, each connection that is dead, unknown to the
		// client, may fail an attempt.
		asked := t.eventually(func() bool {
			var k locker.Lock
			k, err = t.try(t.ctx, l, held.Key())
			t.must(k == nil, "an error", "a lock")
			return errors.Is(err, locker.ErrHeld)
		})
		t.want(asked, "ErrHeld when the network is back", "TryAcquire: %v", err)
	})
	t.release(held)
}

// cutAnywhere breaks connections in the middle of requests and replies, while two
// Lockers contend. What a cut release leaves behind stands until its lease is over.
func cutAnywhere(t *trial) {
	a := &arena{t: t}
	key := t.key()
	t.parallel(2, func(n int) {
		l, net := t.openVia()
		for i := range 12 {
			net.CutAfter(int64(37*i+211*n) % 397)
			ctx, cancel := context.WithTimeout(t.ctx, 2*t.ttl+prompt)
			k, err := t.acquire(ctx, l, key)
			cancel()
			t.must(err == nil, "the lock, by the end of a lease at the latest", "Acquire: %v", err)
			a.enter(k)
			t.pass(time.Millisecond)
			a.leave(k)
			if err := k.Release(t.ctx); err != nil && k.Err() != nil {
				t.wantNoMatch(err, locker.ErrHeld)
			}
		}
	})
	t.release(t.wait(t.bystander(), key).served(t.ttl + prompt))
}

// lateGrant lets the answer come when the lease is over, and somebody else has the
// key by then.
func lateGrant(t *trial) {
	l, net := t.openVia()
	t.connected(l)
	key := t.key()
	late := t.ttl * 3 / 2
	net.Set(faultnet.Fault{DelayReplies: late})
	var k locker.Lock
	var err error
	var took time.Duration
	trying := t.start(func() {
		start := time.Now()
		k, err = t.try(t.ctx, l, key)
		took = time.Since(start)
	})
	t.pass(t.ttl / 4) // the request is served within this time, or the case is weaker
	next := t.wait(t.bystander(), key, locker.WithTTL(long)).served(t.ttl + prompt)
	t.must(within(trying, 2*t.ttl+prompt), "an answer", "none")
	t.want(k == nil, "no grant when its lease is over", "a lock, Err: %v", errOf(k))
	// Held: the other one was first. A driver with a time-out of its own may give up before.
	if k == nil && !errors.Is(err, locker.ErrHeld) && took >= late {
		t.wantLostError(err, t.orSession(locker.ReasonExpired)...)
	}
	t.wantAlive(next)
	t.wantHeldBy(next)
	t.release(next)

	// Acquire goes on until an answer comes in time.
	w := t.wait(l, t.key())
	t.pass(t.ttl / 4)
	w.wantWaiting()
	net.Set(faultnet.Fault{DelayReplies: 5 * time.Millisecond})
	k = w.served(2*t.ttl + prompt)
	t.wantAlive(k)
	t.wantHeldBy(k)
	t.release(k)
}

func errOf(k locker.Lock) error {
	if k == nil {
		return nil
	}
	return k.Err()
}
