package locker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

// faulty is the memory backend behind a line that can fail: every call passes
// through gate first, and through back before its answer is seen. It is not Local,
// so the core treats it as it treats a server.
type faulty struct {
	locker.Backend
	mu    sync.Mutex
	gate  func(ctx context.Context, op string) error // before the store acts
	back  func(ctx context.Context, op string) error // after it acted: a lost reply
	calls map[string]int
}

func newFaulty(store *memlock.Store) *faulty {
	return &faulty{Backend: memlock.NewBackend(store), calls: make(map[string]int)}
}

func (f *faulty) set(gate, back func(ctx context.Context, op string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate, f.back = gate, back
}

func (f *faulty) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *faulty) before(ctx context.Context, op string) error {
	f.mu.Lock()
	f.calls[op]++
	gate := f.gate
	f.mu.Unlock()
	if gate == nil {
		return nil
	}
	return gate(ctx, op)
}

func (f *faulty) after(ctx context.Context, op string) error {
	f.mu.Lock()
	back := f.back
	f.mu.Unlock()
	if back == nil {
		return nil
	}
	return back(ctx, op)
}

func (f *faulty) Info() locker.Info {
	i := f.Backend.Info()
	i.Name, i.Local = "faulty", false
	i.Can &^= locker.CapWakeUp | locker.CapFIFO | locker.CapPushLoss | locker.CapInspect
	return i
}

func (f *faulty) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := f.before(ctx, "acquire"); err != nil {
		return nil, err
	}
	g, err := f.Backend.TryAcquire(context.WithoutCancel(ctx), req)
	if err != nil {
		return nil, err
	}
	return &faultyGrant{g, f}, f.after(ctx, "acquire")
}

func (f *faulty) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	if err := f.before(ctx, "extend"); err != nil {
		return locker.Lease{}, err
	}
	lease, err := f.Backend.(locker.Extender).Extend(ctx, g.(*faultyGrant).Grant, ttl)
	if err != nil {
		return lease, err
	}
	return lease, f.after(ctx, "extend")
}

type faultyGrant struct {
	locker.Grant
	f *faulty
}

// Lease leaves Since to the core, as a remote store does.
func (g *faultyGrant) Lease() locker.Lease { return locker.Lease{TTL: g.Grant.Lease().TTL} }

func (g *faultyGrant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	if err := g.f.before(ctx, "renew"); err != nil {
		return locker.Lease{}, err
	}
	lease, err := g.Grant.Renew(ctx, ttl)
	if err != nil {
		return lease, err
	}
	return locker.Lease{TTL: lease.TTL}, g.f.after(ctx, "renew")
}

func (g *faultyGrant) Release(ctx context.Context) error {
	if err := g.f.before(ctx, "release"); err != nil {
		return err
	}
	if err := g.Grant.Release(ctx); err != nil {
		return err
	}
	return g.f.after(ctx, "release")
}

// hang never answers before ctx ends, nor then: a driver that cannot be
// interrupted. It comes back when stop is closed.
func hang(stop <-chan struct{}) func(context.Context, string) error {
	return func(context.Context, string) error {
		<-stop
		return context.DeadlineExceeded
	}
}

// only limits a fault to one operation.
func only(op string, f func(context.Context, string) error) func(context.Context, string) error {
	return func(ctx context.Context, got string) error {
		if got != op {
			return nil
		}
		return f(ctx, got)
	}
}

func fails(err error) func(context.Context, string) error {
	return func(context.Context, string) error { return err }
}

// newMem returns a Locker over store that is closed at the end of the test.
func newMem(t *testing.T, store *memlock.Store, cfg *locker.Config) locker.Locker {
	t.Helper()
	l, err := memlock.New(store, cfg)
	require.NoError(t, err)
	closeAfter(t, l)
	return l
}

func newOver(t *testing.T, b locker.Backend, cfg *locker.Config) locker.Locker {
	t.Helper()
	l, err := locker.New(b, cfg)
	require.NoError(t, err)
	closeAfter(t, l)
	return l
}

func closeAfter(t *testing.T, l locker.Locker) {
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = l.Close(ctx)
	})
}

func acquire(t *testing.T, l locker.Locker, key string, opts ...locker.Option) locker.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), key, opts...)
	require.NoError(t, err)
	return k
}

func requireHeld(t *testing.T, l locker.Locker, key string) *locker.HeldError {
	t.Helper()
	k, err := l.TryAcquire(t.Context(), key)
	require.Nil(t, k)
	he := (*locker.HeldError)(nil)
	require.ErrorAs(t, err, &he)
	return he
}

func requireFree(t *testing.T, l locker.Locker, key string) {
	t.Helper()
	k, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
}

func isDone(k locker.Lock) bool {
	select {
	case <-k.Done():
		return true
	default:
		return false
	}
}
