package locker_test

import (
	"context"
	"sync"
	"sync/atomic"
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
	bell    *bell                           // rings at releases, if set
	renewed func(locker.Lease) locker.Lease // changes the answers to renewals, if set

	mu    sync.Mutex
	gate  fault // before the store acts
	back  fault // after it acted: a lost reply
	calls map[string]int
}

// fault is what befalls an operation on its way: time passes, or it fails.
type fault = func(ctx context.Context, op string) error

func newFaulty(store *memlock.Store) *faulty {
	return &faulty{Backend: memlock.NewBackend(store), calls: make(map[string]int)}
}

func (f *faulty) set(gate, back fault) {
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
	return &faultyGrant{g, f, req.Key}, f.after(ctx, "acquire")
}

func (f *faulty) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	if err := f.before(ctx, "extend"); err != nil {
		return locker.Lease{}, err
	}
	lease, err := f.Backend.(locker.Extender).Extend(ctx, g.(*faultyGrant).Grant, ttl)
	if err != nil {
		return lease, err
	}
	return locker.Lease{TTL: lease.TTL}, f.after(ctx, "extend")
}

type faultyGrant struct {
	locker.Grant
	f   *faulty
	key string
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
	lease = locker.Lease{TTL: lease.TTL}
	if g.f.renewed != nil {
		lease = g.f.renewed(lease)
	}
	return lease, g.f.after(ctx, "renew")
}

func (g *faultyGrant) Release(ctx context.Context) error {
	if err := g.f.before(ctx, "release"); err != nil {
		return err
	}
	if err := g.Grant.Release(ctx); err != nil {
		return err
	}
	if g.f.bell != nil {
		g.f.bell.ring(g.key)
	}
	return g.f.after(ctx, "release")
}

// waking is a faulty backend that pushes wake-ups. Those that share a bell hear of
// each other's releases.
type waking struct{ *faulty }

func newWaking(store *memlock.Store, b *bell) waking {
	f := newFaulty(store)
	f.bell = b
	return waking{f}
}

func (b waking) Info() locker.Info {
	i := b.faulty.Info()
	i.Can |= locker.CapWakeUp
	return i
}

func (b waking) Watch(ctx context.Context, key string) (locker.Watch, error) {
	if err := b.before(ctx, "watch"); err != nil {
		return nil, err
	}
	w := b.bell.watch(key)
	if err := b.after(ctx, "watch"); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// bell rings for those who watch a key.
type bell struct {
	mu      sync.Mutex
	watches map[*watch]bool
}

type watch struct {
	bell *bell
	key  string
	c    chan struct{}
}

func newBell() *bell { return &bell{watches: make(map[*watch]bool)} }

func (b *bell) watch(key string) *watch {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := &watch{b, key, make(chan struct{}, 1)}
	b.watches[w] = true
	return w
}

func (b *bell) ring(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watches {
		if w.key == key {
			select {
			case w.c <- struct{}{}:
			default:
			}
		}
	}
}

// watched is the number of open watches.
func (b *bell) watched() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.watches)
}

func (w *watch) C() <-chan struct{} { return w.c }

func (w *watch) Close() {
	w.bell.mu.Lock()
	defer w.bell.mu.Unlock()
	delete(w.bell.watches, w)
}

// queueing is a faulty backend with the store's line of waiters.
type queueing struct {
	*faulty
	enqueued *[]string // the owners, guarded by mu
}

func newQueueing(store *memlock.Store) queueing { return queueing{newFaulty(store), new([]string)} }

func (b queueing) Info() locker.Info {
	i := b.faulty.Info()
	i.Can |= locker.CapWakeUp | locker.CapFIFO
	return i
}

func (b queueing) owners() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return *b.enqueued
}

func (b queueing) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	if err := b.before(ctx, "enqueue"); err != nil {
		return nil, err
	}
	p, err := b.Backend.(locker.Queuer).Enqueue(context.WithoutCancel(ctx), req)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	*b.enqueued = append(*b.enqueued, req.Owner)
	b.mu.Unlock()
	if err := b.after(ctx, "enqueue"); err != nil {
		_ = p.Leave(ctx)
		return nil, err
	}
	return &faultyPlace{p, b.faulty, req.Key}, nil
}

type faultyPlace struct {
	locker.Place
	f   *faulty
	key string
}

func (p *faultyPlace) Claim(ctx context.Context) (locker.Grant, error) {
	if err := p.f.before(ctx, "claim"); err != nil {
		return nil, err
	}
	g, err := p.Place.Claim(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return &faultyGrant{g, p.f, p.key}, p.f.after(ctx, "claim")
}

func (p *faultyPlace) Leave(ctx context.Context) error {
	if err := p.f.before(ctx, "leave"); err != nil {
		return err
	}
	return p.Place.Leave(ctx)
}

// closing is a faulty backend with resources of its own.
type closing struct{ *faulty }

func (b closing) Close(ctx context.Context) error { return b.before(ctx, "close") }

// hang never answers before ctx ends, nor then: a driver that cannot be
// interrupted. It comes back when stop is closed.
func hang(stop <-chan struct{}) fault {
	return func(context.Context, string) error {
		<-stop
		return context.DeadlineExceeded
	}
}

// untilEnd waits for the end of ctx and returns its error, as many drivers do.
func untilEnd(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// takes is a slow line, whatever ctx says.
func takes(d time.Duration) fault {
	return func(context.Context, string) error {
		time.Sleep(d)
		return nil
	}
}

func fails(err error) fault {
	return func(context.Context, string) error { return err }
}

// only limits a fault to one operation.
func only(op string, f fault) fault {
	return func(ctx context.Context, got string) error {
		if got != op {
			return nil
		}
		return f(ctx, got)
	}
}

// first limits a fault to the first n calls.
func first(n int32, f fault) fault {
	var calls atomic.Int32
	return func(ctx context.Context, op string) error {
		if calls.Add(1) > n {
			return nil
		}
		return f(ctx, op)
	}
}

// taken takes a key for somebody else, who does not renew it.
func taken(t *testing.T, store *memlock.Store, key string, ttl time.Duration) locker.Grant {
	t.Helper()
	g, err := memlock.NewBackend(store).TryAcquire(t.Context(), locker.Request{Key: key, Owner: "them", TTL: ttl})
	require.NoError(t, err)
	return g
}

// shown is what the store shows of a key.
func shown(t *testing.T, store *memlock.Store, key string) locker.Holding {
	t.Helper()
	h, err := memlock.NewBackend(store).(locker.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	return h
}

// breakLock frees the key in the store behind the holder's back.
func breakLock(t *testing.T, store *memlock.Store, k locker.Lock) {
	t.Helper()
	done, err := memlock.NewBackend(store).(locker.Inspector).ForceRelease(t.Context(), k.Key(), k.Owner())
	require.NoError(t, err)
	require.True(t, done)
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
