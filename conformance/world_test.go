package conformance_test

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/memlock"
)

// world is a memory store, and Lockers on it whose every step can be replaced:
// that is how the suite itself is tested. With no hook set it is memlock.
type world struct {
	store    *memlock.Store
	requests atomic.Int64

	mu      sync.Mutex
	clients []*client

	// Hooks of the backend. next does the step as memlock does.
	info    func(*locker.Info)
	key     func(string) string
	latency time.Duration // of each request; makes the store a remote one
	attempt func(ctx context.Context, c *client, req locker.Request, next attempt) (locker.Grant, error)
	renew   func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error)
	extend  func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error)
	release func(ctx context.Context, g *grant) error
	token   func(c *client, g *grant) uint64
	list    func(ctx context.Context, yield func(string, locker.Holding) bool, next listing) error
	deaf    bool // waiters in the store's line do not hear of their turn
	leave   func(ctx context.Context, p *place) error
	unsaid  bool // losses are not pushed
	names   func(held []string) []string
	apart   bool // every client has a store of its own

	// locker wraps the Locker of the nth client, from 0.
	locker func(l locker.Locker, n int) locker.Locker
}

type listing func(context.Context, func(string, locker.Holding) bool) error

type attempt func(locker.Request) (locker.Grant, error)

func newWorld() *world { return &world{store: memlock.NewStore()} }

func (w *world) harness() conformance.Harness {
	return conformance.Harness{
		Open: w.open,
		Names: func(context.Context) ([]string, error) {
			if w.names != nil {
				return w.names(w.store.Keys()), nil
			}
			return w.store.Keys(), nil
		},
		Requests: w.requests.Load,
	}
}

func (w *world) open(context.Context) (locker.Locker, error) {
	store := w.store
	if w.apart {
		store = memlock.NewStore()
	}
	inner := memlock.NewBackend(store)
	c := &client{w: w, inner: inner, quit: make(chan struct{})}
	w.mu.Lock()
	n := len(w.clients)
	w.clients = append(w.clients, c)
	w.mu.Unlock()
	var b locker.Backend = c
	if !w.unsaid {
		b = pushing{c, inner.(locker.LossPusher)}
	}
	l, err := locker.New(b, nil)
	if err == nil && w.locker != nil {
		l = w.locker(l, n)
	}
	return l, err
}

// clientOf returns the nth client.
func (w *world) clientOf(n int) *client {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clients[n]
}

// client is one Backend on the world's store.
type client struct {
	w     *world
	inner locker.Backend
	quit  chan struct{} // closed by Close

	// For hooks.
	tokens  atomic.Uint64
	closing atomic.Bool
}

// pushing is a client that pushes losses.
type pushing struct {
	*client
	locker.LossPusher
}

var (
	_ locker.Queuer     = pushing{}
	_ locker.Extender   = pushing{}
	_ locker.Inspector  = pushing{}
	_ locker.LossPusher = pushing{}
	_ locker.Closer     = pushing{}
)

func (c *client) Info() locker.Info {
	info := c.inner.Info()
	info.Local = c.w.latency == 0
	if c.w.unsaid {
		info.Can &^= locker.CapPushLoss
	}
	if c.w.info != nil {
		c.w.info(&info)
	}
	return info
}

// send is the way of a request to the store, and back. It ends with ctx.
func (c *client) send(ctx context.Context) error {
	c.w.requests.Add(1)
	return c.travel(ctx)
}

func (c *client) travel(ctx context.Context) error {
	if c.w.latency == 0 {
		return nil
	}
	timer := time.NewTimer(c.w.latency / 2)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *client) storeKey(key string) string {
	if c.w.key != nil {
		return c.w.key(key)
	}
	return key
}

func (c *client) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return c.try(ctx, req, func(req locker.Request) (locker.Grant, error) {
		return c.inner.TryAcquire(ctx, req)
	})
}

func (c *client) try(ctx context.Context, req locker.Request, next attempt) (locker.Grant, error) {
	if err := c.send(ctx); err != nil {
		return nil, err
	}
	sent := next
	next = func(req locker.Request) (locker.Grant, error) {
		inner := req
		inner.Key = c.storeKey(req.Key)
		g, err := sent(inner)
		if g == nil {
			return nil, err
		}
		return &grant{Grant: g, c: c, req: req}, err
	}
	var g locker.Grant
	var err error
	if c.w.attempt != nil {
		g, err = c.w.attempt(ctx, c, req, next)
	} else {
		g, err = next(req)
	}
	if lost := c.travel(ctx); lost != nil && g != nil {
		return g, lost // the outcome is unknown to this side
	}
	return g, err
}

func (c *client) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	if err := c.send(ctx); err != nil {
		return nil, err
	}
	inner := req
	inner.Key = c.storeKey(req.Key)
	p, err := c.inner.(locker.Queuer).Enqueue(ctx, inner)
	if err != nil {
		return nil, err
	}
	return &place{Place: p, c: c, req: req}, nil
}

func (c *client) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	if err := c.send(ctx); err != nil {
		return locker.Lease{}, err
	}
	mine := g.(*grant)
	var lease locker.Lease
	var err error
	if c.w.extend != nil {
		lease, err = c.w.extend(ctx, mine, ttl)
	} else {
		lease, err = mine.setTo(ctx, ttl)
	}
	return lease, cmp.Or(err, c.travel(ctx))
}

func (c *client) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	return c.inner.(locker.Inspector).Inspect(ctx, c.storeKey(key))
}

func (c *client) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	return c.inner.(locker.Inspector).ForceRelease(ctx, c.storeKey(key), holder)
}

func (c *client) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	next := c.inner.(locker.Inspector).List
	if c.w.list != nil {
		return c.w.list(ctx, yield, next)
	}
	return next(ctx, yield)
}

func (c *client) Close(context.Context) error {
	close(c.quit)
	return nil
}

type grant struct {
	locker.Grant
	c   *client
	req locker.Request

	// For hooks.
	minus  time.Duration // what Lease hides of the life
	minted uint64
}

func (g *grant) Token() uint64 {
	if g.c.w.token != nil {
		return g.c.w.token(g.c, g)
	}
	return g.Grant.Token()
}

func (g *grant) Lease() locker.Lease {
	lease := g.Grant.Lease()
	lease.TTL -= g.minus
	return lease
}

// setTo sets the lease as an Extender does.
func (g *grant) setTo(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	return g.c.inner.(locker.Extender).Extend(ctx, g.Grant, ttl)
}

func (g *grant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	if err := g.c.send(ctx); err != nil {
		return locker.Lease{}, err
	}
	var lease locker.Lease
	var err error
	if g.c.w.renew != nil {
		lease, err = g.c.w.renew(ctx, g, ttl)
	} else {
		lease, err = g.Grant.Renew(ctx, ttl)
	}
	return lease, cmp.Or(err, g.c.travel(ctx))
}

func (g *grant) Release(ctx context.Context) error {
	if err := g.c.send(ctx); err != nil {
		return err
	}
	var err error
	if g.c.w.release != nil {
		err = g.c.w.release(ctx, g)
	} else {
		err = g.Grant.Release(ctx)
	}
	return cmp.Or(err, g.c.travel(ctx))
}

type place struct {
	locker.Place
	c   *client
	req locker.Request
}

func (p *place) Turn() <-chan struct{} {
	if p.c.w.deaf {
		return nil
	}
	return p.Place.Turn()
}

func (p *place) Claim(ctx context.Context) (locker.Grant, error) {
	return p.c.try(ctx, p.req, func(locker.Request) (locker.Grant, error) { return p.Place.Claim(ctx) })
}

func (p *place) Leave(ctx context.Context) error {
	if err := p.c.send(ctx); err != nil {
		return err
	}
	if p.c.w.leave != nil {
		return p.c.w.leave(ctx, p)
	}
	return p.Place.Leave(ctx)
}
