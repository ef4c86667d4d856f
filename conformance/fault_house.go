package conformance

import (
	"context"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

var houseFaults = []Case{{
	ID: "House/close-in-outage", Rule: ruleClose, Uses: PartNetwork, Cites: []string{"C17", "C51"},
	run: closeInOutage,
}, {
	ID: "House/goroutines-after-faults", Rule: ruleLeaks, Uses: PartNetwork, Cites: []string{"C06", "C36"},
	run: goroutinesEndAfterFaults,
}}

func closeInOutage(t *trial) {
	l, net := t.openVia()
	held := []locker.Lock{t.take(l, t.key()), t.take(l, t.key())}
	busy := t.take(t.open(), t.key(), locker.WithTTL(long))
	w := t.waitInLine(l, busy.Key())
	net.Set(faultnet.BlackHole)
	ctx, cancel := context.WithTimeout(t.ctx, 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_ = l.Close(ctx) // its error says what could not be given back
	took := time.Since(start)
	t.want(took < 2*releaseBound+prompt, "an end of Close", "it took %v", took)
	t.wantError(w.failed(prompt), locker.ErrClosed)
	for _, k := range held {
		t.wantLost(k, 0)
	}
	net.Set(faultnet.None)
	for _, k := range held {
		if t.can(locker.CapExpiry) {
			t.release(t.wait(t.bystander(), k.Key()).served(k.TTL() + 2*prompt))
		}
	}
	t.release(busy)
}

// goroutinesEndAfterFaults compares with the number after a first round.
func goroutinesEndAfterFaults(t *trial) {
	round := func() {
		l, net := t.openVia()
		t.connected(l)
		for _, fault := range []faultnet.Fault{faultnet.BlackHole, faultnet.Refused, faultnet.Mute} {
			k := t.take(l, t.key())
			w := t.waitInLine(l, k.Key())
			outage(net, fault)
			for _, call := range []func(context.Context) error{
				func(ctx context.Context) error {
					_, err := t.try(ctx, l, t.key())
					return err
				},
				k.Release,
			} {
				ctx, cancel := context.WithTimeout(t.ctx, 50*time.Millisecond)
				err := call(ctx)
				cancel()
				t.want(err != nil, "an error", "nil")
			}
			w.cancel(nil)
			t.must(within(w.done, prompt), "an end of the cancelled wait", "none after %v", prompt)
			if w.lock != nil {
				t.release(w.lock)
			}
			net.Set(faultnet.None)
		}
		closeNow(t.ctx, l)
		net.Close()
	}
	round()
	before := t.goroutines()
	const rounds = 2
	for range rounds {
		round()
	}
	t.wantGoroutines(before + rounds - 1)
}
