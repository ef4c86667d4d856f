package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// What the cases that break a network or a server have in common.

// recovery bounds the time that a client, and a failover, need to find back.
const recovery = 20 * time.Second

// outages are faults under which no call gets an answer.
var outages = []faultnet.Fault{faultnet.BlackHole, faultnet.Mute, faultnet.Deaf, faultnet.Refused}

// outage puts a fault into force. Where new connections are refused, those of before
// are broken: else they would go on.
func outage(net *faultnet.Network, fault faultnet.Fault) {
	net.Set(fault)
	if fault.Refuse {
		net.Reset()
	}
}

// forASecond bounds a call that a fault keeps from its answer. It is long enough
// for a call that goes well.
func (t *trial) forASecond() (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.ctx, time.Second)
}

// connected makes l connect.
func (t *trial) connected(l locker.Locker) { t.release(t.take(l, t.key())) }

// recovered waits until l works again, after the server was away.
func (t *trial) recovered(l locker.Locker) {
	ctx, cancel := context.WithTimeout(t.ctx, recovery)
	defer cancel()
	k, err := t.acquire(ctx, l, t.key())
	t.must(err == nil, fmt.Sprintf("a lock within %v of the server's return", recovery), "Acquire: %v", err)
	t.release(k)
}

// renewedNow waits for the next renewal of k, so that a case has the whole of the
// time before the one after that.
func (t *trial) renewedNow(k locker.Lock) {
	d := k.Deadline()
	for end := time.Now().Add(k.TTL()); !k.Deadline().After(d); t.pass(time.Millisecond) {
		t.must(time.Now().Before(end), "a renewal", "none in %v", k.TTL())
	}
}
