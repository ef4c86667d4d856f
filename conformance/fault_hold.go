package conformance

import (
	"fmt"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

const (
	ruleHung    = "Done is closed, and Err is ErrLost, no later than Deadline, even while a renewal call hangs."
	ruleStop    = "Err is right at the first call after a SIGCONT."
	rulePassing = "A passing renewal error is not a loss: retry until Deadline."
	ruleSlices  = "An attempt to renew that is past its slice is abandoned and its late answer ignored; the next may start."
)

var holdFaults = []Case{{
	ID: "H1/hung-renewal", Rule: ruleSlices, Uses: PartNetwork, Cites: []string{"C30", "C32"},
	run: hungRenewal,
}, {
	ID: "H1/stranded-connections", Rule: ruleSlices, Needs: locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C30", "C32"},
	run: strandedConnections,
}, {
	ID: "H2/black-hole", Rule: ruleHung, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C31"},
	run: func(t *trial) { lostInTime(t, "black hole", faultnet.BlackHole) },
}, {
	ID: "H2/requests-lost", Rule: ruleHung, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C31"},
	run: func(t *trial) { lostInTime(t, "requests lost", faultnet.Deaf) },
}, {
	ID: "H2/replies-lost", Rule: ruleHung, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C31", "C32"},
	run: func(t *trial) { lostInTime(t, "replies lost", faultnet.Mute) },
}, {
	ID: "H2/reset", Rule: ruleHung, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C31"},
	run: func(t *trial) { lostInTime(t, "reset", faultnet.Refused) },
}, {
	ID: "H2/server-frozen", Rule: ruleHung, Needs: locker.CapHolder | locker.CapExpiry, Uses: PartServer, Cites: []string{"C32"},
	run: serverFrozen,
}, {
	ID: "H2/deadline-under-delay", Rule: ruleDeadline, Needs: locker.CapHolder | locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C41"},
	run: deadlineUnderDelay,
}, {
	ID: "H2/stopped-process", Rule: ruleStop, Needs: locker.CapExclusive | locker.CapExpiry, Uses: PartProcesses | PartStop, Cites: []string{"C46", "C28"},
	run: stoppedProcess,
}, {
	ID: "H3/passing-failure", Rule: rulePassing, Needs: locker.CapExpiry, Uses: PartNetwork, Cites: []string{"C30"},
	run: passingFailure,
}, {
	ID: "H3/server-restarted", Rule: "A lock whose server has crashed and come back is either held on, by its holder and in the store, or lost; it is never re-created.",
	Needs: locker.CapInspect | locker.CapExpiry, Uses: PartServer, Cites: []string{"C90", "C28"},
	run: serverRestarted,
}}

// hungRenewal holds up a renewal, and its answer, for a part of the lease.
func hungRenewal(t *trial) {
	for _, fault := range []faultnet.Fault{faultnet.Mute, faultnet.BlackHole} {
		l, net := t.openVia()
		k := t.take(l, t.key(), locker.WithTTL(2*t.ttl))
		t.renewedNow(k)
		net.Set(fault)
		t.pass(k.TTL() * 6 / 10)
		net.Set(faultnet.None)
		t.survives(k)
	}
}

// strandedConnections lets the client find out by itself that its connections are
// dead. New ones are good.
func strandedConnections(t *trial) {
	l, net := t.openVia()
	k := t.take(l, t.key(), locker.WithTTL(2*t.ttl))
	t.renewedNow(k)
	net.Strand()
	t.survives(k, locker.ReasonExpired) // nobody can have told the loss of a session
	t.connected(l)
}

// survives checks that k is held on after a fault that passed. Where the store's
// session is bound to a connection, it may be lost with it: then that was told, or one
// of the other reasons, and the key is free when the store has noticed too.
func (t *trial) survives(k locker.Lock, others ...locker.Reason) {
	first := k.Deadline()
	for range 6 {
		t.pass(k.TTL() / 3)
		if k.Err() != nil && t.onConnections() {
			t.wantLost(k, 0, t.orSession(others...)...)
			t.release(t.wait(t.bystander(), k.Key()).served(k.TTL() + prompt))
			return
		}
		t.wantAlive(k)
	}
	t.wantHeldBy(k)
	t.want(k.Deadline().After(first), "a Deadline that renewal has moved", "%v after the first one", k.Deadline().Sub(first))
	t.releasedAgain(k) // a connection that is dead, unknown to the client, may fail the first one
	t.wantFree(k.Key())
}

// lostInTime cuts a holder off while somebody else waits for its key. What Err says
// depends on the clock alone. Done is closed by a timer, which a busy machine may
// serve late: a part of the lease is left for that.
func lostInTime(t *trial, what string, fault faultnet.Fault) {
	l, net := t.openVia()
	k := t.take(l, t.key())
	var next locker.Lock
	var granted time.Time
	var believed error // what the holder's Err says at that moment
	waiting := t.start(func() {
		var err error
		next, err = t.acquire(t.ctx, t.open(), k.Key())
		granted, believed = time.Now(), k.Err()
		t.must(err == nil, "the lock, sooner or later", "Acquire: %v", err)
	})
	t.renewedNow(k)
	ctx, cancel := locker.WithLock(t.ctx, k)
	defer cancel()
	outage(net, fault)
	t.wantLost(k, k.TTL()+prompt)
	told := time.Now()
	t.must(within(ctx.Done(), prompt), "the lock's context ended", "it goes on")
	t.must(within(waiting, 2*k.TTL()+prompt) && next != nil, "the next grant when the lease is over", "none")
	t.figure("lead of Done before the next grant, "+what, granted.Sub(told))
	t.wantLostError(believed)
	t.want(told.Sub(granted) < k.TTL()/10, "the loss told before the next grant", "%v after it", told.Sub(granted))
	t.wantLostError(k.Release(t.ctx))
	net.Set(faultnet.None)
	if t.can(locker.CapToken) {
		t.want(next.Token() > k.Token(), fmt.Sprintf("a token over %d, that of the lost lock", k.Token()), "token %d", next.Token())
	}
	// What the holder had sent arrives now. It must not touch the new grant.
	t.pass(t.ttl / 10)
	t.wantAlive(next)
	t.wantHeldBy(next)
	t.release(next)
}

// serverFrozen stops the server, whose clock goes on. A client of its own has read
// just before when it will let the key go.
func serverFrozen(t *trial) {
	k := t.take(t.open(), t.key())
	var end time.Time
	for renewed := true; renewed; {
		t.renewedNow(k)
		d := k.Deadline()
		held := t.wantHeld(k.Key())
		end = time.Now().Add(held.Remaining)
		t.pauseServer()
		if renewed = k.Deadline() != d; renewed { // in between: another try
			t.resumeServer()
		}
	}
	t.wantLost(k, k.TTL()+prompt, t.orSession(locker.ReasonExpired)...)
	lead := time.Until(end)
	t.resumeServer()
	t.figure("lead of Done before the end of the lease, server frozen", lead)
	t.want(!k.Deadline().After(end.Add(t.unit())), "a Deadline before the lease ends in the store", "%v after", k.Deadline().Sub(end))
	t.want(lead > -k.TTL()/10, "the loss told before the lease ends in the store", "%v after", -lead)
	t.wantLostError(k.Release(t.ctx))
	t.recovered(t.bystander())
	t.release(t.wait(t.bystander(), k.Key()).served(2*k.TTL() + prompt))
}

func deadlineUnderDelay(t *trial) {
	l, net := t.openVia()
	t.connected(l)
	t.connected(t.bystander())
	for i := range 6 {
		late := t.ttl * time.Duration(i) / 50
		net.Set([]faultnet.Fault{{DelayReplies: late}, {DelayRequests: late}}[i%2])
		t.wantDeadlinesInStore(l)
	}
	net.Set(faultnet.Fault{DelayReplies: t.ttl / 50})
	t.wantRenewedDeadlinesInStore(l)
}

// stoppedProcess stops a holder for longer than its lease, and lets it go on when
// somebody else has the key.
func stoppedProcess(t *trial) {
	key := t.key()
	c := t.child()
	old := c.acquire(key, t.ttl)
	watched := old.watch()
	w := t.waitInLine(t.open(), key, locker.WithTTL(long))
	c.stop()
	next := w.served(old.ttl + prompt)
	t.pass(t.ttl / 4)
	resumed := machineClock()
	c.resume()
	seen := c.await(watched)
	t.figure("told after SIGCONT", seen.LostAt-resumed)
	t.want(seen.AliveAt <= seen.Deadline, "Err nil only before the Deadline", "Err was nil %v after it", seen.AliveAt-seen.Deadline)
	t.want(seen.LostAt-resumed < prompt, "the loss seen as soon as the process runs again", "%v later", seen.LostAt-resumed)
	t.want(seen.Lost, "an error that matches ErrLost", "Err: %s", seen.Text)
	released := old.tryRelease()
	t.want(released.Lost, "ErrLost from a Release after the loss", "Release: %q", released.Text)
	if t.can(locker.CapToken) {
		t.want(next.Token() > old.Token(), fmt.Sprintf("a token over %d, the stopped holder's", old.Token()), "token %d", next.Token())
	}
	t.wantAlive(next)
	t.wantHeldBy(next)
	t.release(next)
}

// passingFailure breaks the network for a part of the lease, from just after a
// renewal.
func passingFailure(t *trial) {
	l, net := t.openVia()
	k := t.take(l, t.key(), locker.WithTTL(2*t.ttl))
	t.renewedNow(k)
	outage(net, faultnet.Refused)
	t.pass(k.TTL() * 6 / 10)
	net.Set(faultnet.None)
	t.survives(k)
}

func serverRestarted(t *trial) {
	l := t.open()
	k := t.take(l, t.key(), locker.WithTTL(20*t.ttl))
	t.killServer()
	t.restartServer()
	view := t.inspector(t.bystander())
	t.recovered(t.bystander())
	h, err := view.Inspect(t.ctx, k.Key())
	t.must(err == nil, "an answer", "Inspect: %v", err)
	if h.Holder == "" {
		t.wantLost(k, k.TTL()/2+prompt)
		for range 10 {
			t.pass(t.ttl / 10)
			h, err := view.Inspect(t.ctx, k.Key())
			t.must(err == nil, "an answer", "Inspect: %v", err)
			t.want(h.Holder == "", "a key that stays free", "held again by %q", h.Holder)
		}
		t.wantLostError(k.Release(t.ctx))
		return
	}
	t.recovered(l)
	t.renewedNow(k)
	t.wantAlive(k)
	t.wantHeldBy(k)
	t.release(k)
}
