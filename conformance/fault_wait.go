package conformance

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

const ruleRideOut = "Server errors that pass (connection refused, loading, failover) are waited out with back-off until ctx ends."

var waitFaults = []Case{{
	ID: "W1/lost-subscription", Rule: ruleWoken, Needs: locker.CapExclusive | locker.CapWakeUp, Uses: PartNetwork, Cites: []string{"C53", "C60"},
	run: lostSubscription,
}, {
	ID: "W1/released-in-outage", Rule: ruleWoken, Needs: locker.CapExclusive | locker.CapWakeUp, Uses: PartNetwork, Cites: []string{"C53"},
	run: releasedInOutage,
}, {
	ID: "W3/cancelled-in-outage", Rule: ruleLeave, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C02", "C05"},
	run: cancelledInOutage,
}, {
	ID: "W4/outage", Rule: ruleRideOut, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C15", "C130"},
	run: waitThroughOutage,
}, {
	ID: "W4/outage-without-end", Rule: ruleRideOut, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C08", "C15"},
	run: outageWithoutEnd,
}, {
	ID: "W4/server-killed", Rule: ruleRideOut, Needs: locker.CapExclusive, Uses: PartServer, Cites: []string{"C15", "C89"},
	run: waitThroughCrash,
}, {
	ID: "W5/unreachable-waiter", Rule: "A waiter that cannot be reached costs its reservation, not the TTL.",
	Needs: locker.CapExclusive | locker.CapWakeUp, Uses: PartNetwork, Cites: []string{"C56", "C106"},
	run: unreachableWaiter,
}}

// lostSubscription breaks a waiter's connections while the key stays held. A client
// that is not told has nothing but the holder's remaining time to go by.
func lostSubscription(t *trial) {
	t.parallel(2, func(i int) {
		l, net := t.openVia()
		ttl, breaks := long, net.Reset
		if i == 1 {
			ttl, breaks = 10*t.ttl, net.Strand
		}
		k := t.take(t.open(), t.key(), locker.WithTTL(ttl))
		w := t.waitInLine(l, k.Key(), locker.WithTTL(long))
		breaks()
		t.pass(t.ttl)
		t.release(k)
		t.releasedAgain(w.served(10*t.ttl + prompt))
	})
}

// releasedInOutage releases the key while its waiter cannot hear of it.
func releasedInOutage(t *trial) {
	l, net := t.openVia()
	for _, fault := range []faultnet.Fault{faultnet.BlackHole, faultnet.Refused} {
		k := t.take(t.open(), t.key(), locker.WithTTL(long))
		w := t.waitInLine(l, k.Key(), locker.WithTTL(long))
		outage(net, fault)
		t.pass(t.ttl / 4)
		t.release(k)
		t.pass(t.ttl / 4)
		net.Set(faultnet.None)
		t.release(w.served(2 * prompt))
	}
}

func cancelledInOutage(t *trial) {
	l, net := t.openVia()
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	for _, fault := range []faultnet.Fault{faultnet.BlackHole, faultnet.Refused} {
		w := t.waitInLine(l, k.Key(), locker.WithTTL(long))
		outage(net, fault)
		t.pass(20 * time.Millisecond)
		w.cancel(errCause)
		err := w.failed(prompt)
		t.wantError(err, context.Canceled, errCause)
		net.Set(faultnet.None)
	}
	t.release(k)
	// A place in the store's line that could not be given up costs its reservation.
	next := t.wait(t.bystander(), k.Key(), locker.WithTTL(t.ttl)).served(2 * prompt)
	t.release(next)
}

// waitThroughOutage counts what a waiter does while nothing answers.
func waitThroughOutage(t *trial) {
	l, net := t.openVia()
	t.connected(l)
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	outage(net, faultnet.Refused)
	w := t.wait(l, k.Key(), locker.WithTTL(long))
	second := t.wait(l, t.key(), locker.WithTTL(long)) // free all the time
	start, dials := time.Now(), net.Dials()
	t.pass(1500 * time.Millisecond)
	tried, took := net.Dials()-dials, time.Since(start)
	// Two waiters, up to 20 attempts a second, and drivers that dial several times
	// for each.
	most := int(2 * 20 * 5 * took / time.Second)
	t.want(tried <= most, fmt.Sprintf("at most %d attempts to connect in %v", most, took), "%d", tried)
	w.wantWaiting()
	second.wantWaiting()
	net.Set(faultnet.None)
	t.release(second.served(2 * prompt))
	t.release(k)
	t.release(w.served(2 * prompt))
}

// outageWithoutEnd lets the context end in an outage: the error tells both.
func outageWithoutEnd(t *trial) {
	l, net := t.openVia()
	t.connected(l)
	outage(net, faultnet.Refused)
	ctx, cancel := context.WithTimeout(t.ctx, t.ttl)
	defer cancel()
	_, err := t.acquire(ctx, l, t.key())
	t.must(err != nil, "an error", "Acquire: a lock")
	t.wantError(err, context.DeadlineExceeded)
	t.wantNoMatch(err, locker.ErrHeld)
	told := func(e syscall.Errno) bool { return strings.Contains(err.Error(), e.Error()) }
	// A driver that dials for long within one attempt has told only of the connection
	// that it had, by then.
	t.want(told(syscall.ECONNREFUSED) || told(syscall.ECONNRESET), "the driver's last error in it, too", "error: %v", err)
}

func waitThroughCrash(t *trial) {
	l := t.open()
	t.connected(l)
	start := time.Now()
	t.killServer()
	w := t.wait(l, t.key())
	what := "next grant after the failover"
	if !t.suite.h.Server.Failover {
		t.pass(t.ttl / 2)
		w.wantWaiting()
		what = "next grant after the restart"
		start = time.Now()
		t.restartServer()
	}
	k := w.served(recovery)
	t.figure(what, w.at.Sub(start))
	if t.suite.h.Server.Failover {
		t.restartServer()
	}
	_ = k.Release(t.ctx) // a second crash, of the failover, may have taken it
}

// unreachableWaiter lets the first in line be cut off when its turn comes.
func unreachableWaiter(t *trial) {
	l, net := t.openVia()
	ttl, most := long, 2*prompt
	if t.can(locker.CapLeasedPlace) { // then it is the TTL
		ttl = t.ttl
		most += ttl
	}
	k := t.take(t.open(), t.key(), locker.WithTTL(long))
	first := t.waitInLine(l, k.Key(), locker.WithTTL(ttl))
	second := t.waitInLine(t.open(), k.Key(), locker.WithTTL(long))
	net.Set(faultnet.BlackHole)
	t.release(k)
	t.release(second.served(most))
	net.Set(faultnet.None)
	t.release(first.served(2 * prompt))
}
