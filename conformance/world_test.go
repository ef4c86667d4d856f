package conformance_test

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
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
	server  *server       // if set, all requests go to it over connections
	attempt func(ctx context.Context, c *client, req locker.Request, next attempt) (locker.Grant, error)
	renew   func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error)
	extend  func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error)
	release func(ctx context.Context, g *grant) error
	token   func(c *client, g *grant) uint64
	failed  func(g *grant, unknown bool, err error) (locker.Grant, error)       // what an attempt without an answer says
	since   func() time.Time                                                    // of a grant's lease
	renewed func(g *grant, lease locker.Lease, err error) (locker.Lease, error) // what a renewal says
	turn    func(p *place) <-chan struct{}                                      // how a waiter hears of its turn
	resends bool                                                                // a release without an answer is sent again by the driver
	patient bool                                                                // renewals outlast their context, and come one after another
	deaf    bool                                                                // waiters in the store's line do not hear of their turn
	list    func(ctx context.Context, yield func(string, locker.Holding) bool, next listing) error
	leave   func(ctx context.Context, p *place) error
	unsaid  bool // losses are not pushed
	names   func(held []string) []string
	apart   bool                           // every client has a store of its own
	onOpen  func(c *client) locker.Backend // if set, what a client is to its Locker

	// locker wraps the Locker of the nth client, from 0.
	locker func(l locker.Locker, n int) locker.Locker
}

type listing func(context.Context, func(string, locker.Holding) bool) error

type attempt func(locker.Request) (locker.Grant, error)

func newWorld() *world { return &world{store: memlock.NewStore()} }

func (w *world) harness() conformance.Harness {
	h := conformance.Harness{
		Open: func(context.Context) (locker.Locker, error) { return w.open(nil) },
		Names: func(context.Context) ([]string, error) {
			if w.names != nil {
				return w.names(w.store.Keys()), nil
			}
			return w.store.Keys(), nil
		},
		Requests: w.requests.Load,
	}
	if s := w.server; s != nil {
		h.Open = func(context.Context) (locker.Locker, error) { return w.open(&pool{s: s, dial: s.dial}) }
		h.OpenVia = func(_ context.Context, net *faultnet.Network) (locker.Locker, error) {
			net.Under = s.dial
			return w.open(&pool{s: s, dial: net.Dial})
		}
		h.Server = s.hooks()
	}
	return h
}

func (w *world) open(conns *pool) (locker.Locker, error) {
	store := w.store
	if w.apart {
		store = memlock.NewStore()
	}
	inner := memlock.NewBackend(store)
	c := &client{w: w, inner: inner, conns: conns, quit: make(chan struct{}), renewing: make(chan struct{}, 1)}
	w.mu.Lock()
	n := len(w.clients)
	w.clients = append(w.clients, c)
	w.mu.Unlock()
	var b locker.Backend = c
	switch {
	case w.onOpen != nil:
		b = w.onOpen(c)
	case !w.unsaid:
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
	conns *pool         // nil: the store is at hand
	quit  chan struct{} // closed by Close

	// For hooks.
	tokens   atomic.Uint64
	closing  atomic.Bool
	renewing chan struct{}
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
	info.Local = c.w.latency == 0 && c.conns == nil
	if c.w.unsaid {
		info.Can &^= locker.CapPushLoss
	}
	if c.w.info != nil {
		c.w.info(&info)
	}
	return info
}

// exchange has the store do what do does. unknown tells, with an error, that it may
// have been done, or may yet be. Then the result is not to be looked at.
func exchange[T any](ctx context.Context, c *client, do func(ctx context.Context) T) (result T, unknown bool, err error) {
	c.w.requests.Add(1)
	if c.conns != nil {
		// The server does not know when the client gives up.
		there := context.WithoutCancel(ctx)
		done := new(T)
		if sent, err := c.conns.request(ctx, func() { *done = do(there) }); err != nil {
			return result, sent, err
		}
		return *done, false, nil
	}
	if err := c.travel(ctx); err != nil {
		return result, false, err
	}
	result = do(ctx)
	err = c.travel(ctx)
	return result, err != nil, err
}

// travel is the way to a store that is far, or back. It ends with ctx.
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
	return c.try(ctx, req, func(ctx context.Context, req locker.Request) (locker.Grant, error) {
		return c.inner.TryAcquire(ctx, req)
	})
}

func (c *client) try(ctx context.Context, req locker.Request, next func(context.Context, locker.Request) (locker.Grant, error)) (locker.Grant, error) {
	own := &grant{c: c, req: req}
	type answer struct {
		grant locker.Grant
		err   error
	}
	a, unknown, err := exchange(ctx, c, func(ctx context.Context) answer {
		take := func(req locker.Request) (locker.Grant, error) {
			inner := req
			inner.Key = c.storeKey(req.Key)
			g, err := next(ctx, inner)
			if g == nil {
				return nil, err
			}
			own.Grant = g
			return own, err
		}
		var a answer
		if c.w.attempt != nil {
			a.grant, a.err = c.w.attempt(ctx, c, req, take)
		} else {
			a.grant, a.err = take(req)
		}
		return a
	})
	if err == nil {
		return a.grant, a.err
	}
	if c.w.failed != nil {
		return c.w.failed(own, unknown, err)
	}
	return unanswered(own, unknown, err)
}

// unanswered is what a backend returns for an attempt without an answer, with err.
func unanswered(g *grant, unknown bool, err error) (locker.Grant, error) {
	if !unknown {
		return nil, err
	}
	return g, err
}

func (c *client) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	inner := req
	inner.Key = c.storeKey(req.Key)
	type answer struct {
		place locker.Place
		err   error
	}
	a, _, err := exchange(ctx, c, func(ctx context.Context) answer {
		p, err := c.inner.(locker.Queuer).Enqueue(ctx, inner)
		return answer{p, err}
	})
	if err := cmp.Or(err, a.err); err != nil {
		return nil, err
	}
	own := &place{Place: a.place, c: c, req: req}
	if c.w.turn != nil {
		own.turn = c.w.turn(own)
	}
	return own, nil
}

// told is the answer to a request that changes a lease.
type told struct {
	lease locker.Lease
	err   error
}

// set changes a lease.
func (c *client) set(ctx context.Context, do func(ctx context.Context) (locker.Lease, error)) (locker.Lease, error) {
	if c.w.patient {
		ctx = context.WithoutCancel(ctx)
		c.renewing <- struct{}{}
		defer func() { <-c.renewing }()
	}
	a, _, err := exchange(ctx, c, func(ctx context.Context) told {
		lease, err := do(ctx)
		return told{lease, err}
	})
	if c.conns != nil {
		a.lease.Since = time.Time{} // it is not for the server to know when the request was sent
	}
	return a.lease, cmp.Or(err, a.err)
}

func (c *client) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	mine := g.(*grant)
	return c.set(ctx, func(ctx context.Context) (locker.Lease, error) {
		if c.w.extend != nil {
			return c.w.extend(ctx, mine, ttl)
		}
		return mine.setTo(ctx, ttl)
	})
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
	if c.conns != nil {
		c.conns.close()
	}
	return nil
}

type grant struct {
	locker.Grant
	c   *client
	req locker.Request

	// For hooks.
	minus  time.Duration // what Lease hides of the life
	minted uint64
	on     *session
}

func (g *grant) Token() uint64 {
	if g.Grant == nil {
		return 0
	}
	if g.c.w.token != nil {
		return g.c.w.token(g.c, g)
	}
	return g.Grant.Token()
}

func (g *grant) Lease() locker.Lease {
	if g.Grant == nil { // there was no answer: only a mutant asks
		return locker.Lease{TTL: g.req.TTL}
	}
	lease := g.Grant.Lease()
	lease.TTL -= g.minus
	if g.c.conns != nil {
		lease.Since = time.Time{}
	}
	if g.c.w.since != nil {
		lease.Since = g.c.w.since()
	}
	return lease
}

// setTo sets the lease as an Extender does.
func (g *grant) setTo(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	if g.Grant == nil {
		return locker.Lease{}, &locker.LostError{Reason: locker.ReasonExpired}
	}
	return g.c.inner.(locker.Extender).Extend(ctx, g.Grant, ttl)
}

func (g *grant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	lease, err := g.c.set(ctx, func(ctx context.Context) (locker.Lease, error) {
		switch {
		case g.Grant == nil: // there was no answer: only a mutant asks
			return locker.Lease{}, &locker.LostError{Reason: locker.ReasonExpired}
		case g.c.w.renew != nil:
			return g.c.w.renew(ctx, g, ttl)
		}
		return g.Grant.Renew(ctx, ttl)
	})
	if g.c.w.renewed != nil {
		return g.c.w.renewed(g, lease, err)
	}
	return lease, err
}

func (g *grant) Release(ctx context.Context) error {
	unknown, err := g.giveBack(ctx)
	if unknown && g.c.w.resends {
		_, err = g.giveBack(ctx)
	}
	return err
}

func (g *grant) giveBack(ctx context.Context) (unknown bool, err error) {
	refused, unknown, err := exchange(ctx, g.c, func(ctx context.Context) error {
		switch {
		case g.Grant == nil: // the undo of an attempt that never arrived, or has not yet
			return &locker.LostError{Reason: locker.ReasonExpired}
		case g.c.w.release != nil:
			return g.c.w.release(ctx, g)
		}
		return g.Grant.Release(ctx)
	})
	return unknown, cmp.Or(err, refused)
}

type place struct {
	locker.Place
	c    *client
	req  locker.Request
	turn <-chan struct{} // for hooks
}

func (p *place) Turn() <-chan struct{} {
	switch {
	case p.c.w.deaf:
		return nil
	case p.turn != nil:
		return p.turn
	}
	return p.Place.Turn()
}

func (p *place) Claim(ctx context.Context) (locker.Grant, error) {
	return p.c.try(ctx, p.req, func(ctx context.Context, _ locker.Request) (locker.Grant, error) { return p.Place.Claim(ctx) })
}

func (p *place) Leave(ctx context.Context) error {
	refused, _, err := exchange(ctx, p.c, func(ctx context.Context) error {
		if p.c.w.leave != nil {
			return p.c.w.leave(ctx, p)
		}
		return p.Place.Leave(ctx)
	})
	return cmp.Or(err, refused)
}
