package conformance

import (
	"context"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

const ruleRetry = "The work runs detached for at most 5 s. Unreachable store: an error that is not ErrLost; renewal has stopped; a second Release really retries."

// releaseBound is how long a Release may work.
const releaseBound = 5 * time.Second

var releaseFaults = []Case{{
	ID: "R2/dead-network", Rule: ruleRetry, Uses: PartNetwork, Cites: []string{"C17"},
	run: releaseIntoABlackHole,
}, {
	ID: "R2/retried", Rule: ruleRetry, Uses: PartNetwork, Cites: []string{"C21", "C24"},
	run: releaseRetried,
}, {
	ID: "R2/lost-reply", Rule: ruleRetry, Needs: locker.CapExclusive, Uses: PartNetwork, Cites: []string{"C19", "C21"},
	run: releaseWithoutReply,
}}

func releaseIntoABlackHole(t *trial) {
	t.parallel(2, func(i int) {
		l, net := t.openVia()
		k := t.take(l, t.key(), locker.WithTTL(long))
		ctx, most := t.ctx, releaseBound
		if i == 0 {
			most = 200 * time.Millisecond
			bounded, cancel := context.WithTimeout(t.ctx, most)
			defer cancel()
			ctx = bounded
		}
		net.Set(faultnet.BlackHole)
		start := time.Now()
		err := k.Release(ctx)
		took := time.Since(start)
		t.want(took < most+prompt, "an end of the call", "%v", took)
		t.want(err != nil, "an error: nothing has arrived", "Release: nil")
		if !t.onConnections() { // a session may have been lost meanwhile
			t.wantNoMatch(err, locker.ErrLost)
		}
		t.want(k.Err() != nil, "a lock that is over", "Err: nil")
		net.Set(faultnet.None)
		net.Reset()
		t.releasedAgain(k)
		t.wantFree(k.Key())
	})
}

// releasedAgain repeats a Release that failed, until it is done.
func (t *trial) releasedAgain(k locker.Lock) {
	var err error
	done := false
	for range 4 { // some of the client's connections may be dead without its knowing
		if err = k.Release(t.ctx); err == nil {
			done = true
			break
		}
	}
	t.want(done || t.onConnections(), "nil from a Release when the network is back", "Release: %v", err)
}

// releaseRetried lets the work of the first Release come to its end without success.
func releaseRetried(t *trial) {
	l, net := t.openVia()
	k := t.take(l, t.key(), locker.WithTTL(long))
	outage(net, faultnet.Refused)
	err := k.Release(t.ctx)
	t.want(err != nil, "an error: nothing has arrived", "Release: nil")
	if !t.onConnections() {
		t.wantNoMatch(err, locker.ErrLost)
		before := t.wantHeldBy(k)
		t.pass(max(t.ttl/4, 2*t.unit()))
		after := t.wantHeldBy(k)
		if t.can(locker.CapHolder) {
			t.want(after.Remaining < before.Remaining, "a lease that nobody renews", "%v left, then %v", before.Remaining, after.Remaining)
		}
	}
	net.Set(faultnet.None)
	t.releasedAgain(k)
	t.wantFree(k.Key())
}

// releaseWithoutReply loses the answer to a release that was served.
func releaseWithoutReply(t *trial) {
	l, net := t.openVia()
	for range 5 {
		k := t.take(l, t.key(), locker.WithTTL(long))
		net.DropReplies(1, nil)
		if err := k.Release(t.ctx); err != nil {
			t.wantNoMatch(err, locker.ErrLost)
			net.DropReplies(0, nil)
			t.releasedAgain(k)
		}
		net.DropReplies(0, nil)
		t.wantFree(k.Key())
	}
}
