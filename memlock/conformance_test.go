package memlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/memlock"
)

func TestConformance(t *testing.T) {
	store := memlock.NewStore()
	var requests atomic.Int64
	conformance.Run(t, conformance.Harness{
		Open: func(context.Context) (locker.Locker, error) {
			return locker.New(counting{memlock.NewBackend(store).(backend), &requests}, nil)
		},
		TTL:      200 * time.Millisecond,
		Names:    func(context.Context) ([]string, error) { return store.Keys(), nil },
		Requests: requests.Load,
		Only: func(c conformance.Case) bool { // there is no network, no server to be broken, and no session
			return c.Uses&(conformance.PartNetwork|conformance.PartServer) == 0 && c.Needs&locker.CapSessionHolder == 0
		},
	})
}

// counting counts what would be requests if the store were a server.
type counting struct {
	backend
	n *atomic.Int64
}

// backend is all that memlock's Backend can do: a wrapper must not lose any of it.
type backend interface {
	locker.Backend
	locker.Queuer
	locker.Extender
	locker.BatchRenewer
	locker.LossPusher
	locker.Inspector
}

func (b counting) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.n.Add(1)
	return b.backend.TryAcquire(ctx, req)
}

func (b counting) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	b.n.Add(1)
	p, err := b.backend.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return countedPlace{p, b.n}, nil
}

func (b counting) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	b.n.Add(1)
	b.backend.RenewAll(ctx, renewals, answer)
}

type countedPlace struct {
	locker.Place
	n *atomic.Int64
}

func (p countedPlace) Claim(ctx context.Context) (locker.Grant, error) {
	p.n.Add(1)
	return p.Place.Claim(ctx)
}
