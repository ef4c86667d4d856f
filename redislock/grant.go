package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// grant is one holder's value under one key.
type grant struct {
	b      *backend
	key    string // as the caller named it
	name   string // in Redis
	holder string
	token  uint64
	ttl    time.Duration
}

// TryAcquire implements locker.Backend.
func (b *backend) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	if err := ctx.Err(); err != nil {
		return nil, err // go-redis might send it all the same
	}
	g := &grant{b: b, key: req.Key, name: b.lock(req.Key), holder: req.Holder(), ttl: req.TTL}
	slotted := b.slotted.Load()
	reply, unsafe, err := g.acquire(ctx, req.TTL)
	if err != nil && !slotted && isCrossSlot(err) {
		// A client for one server, and the server is a cluster's node. It has
		// refused the command as a whole.
		b.slotted.Store(true)
		reply, unsafe, err = g.acquire(ctx, req.TTL)
	}
	if _, refused := serverError(err); err == nil || refused {
		b.examiner.answered()
	}
	if err != nil {
		if mayHaveRun(err) {
			return g, b.failed(err)
		}
		return nil, b.failed(err)
	}
	token, held, err := acquired(reply)
	switch {
	case err != nil:
		return g, err
	case held != nil:
		held.Key = req.Key
		return nil, held
	}
	g.token = token
	if unsafe != nil {
		return undoUnsafe(ctx, g, b.failed(unsafe))
	}
	return g, nil
}

// acquire sends the command once. Sent again, a first sending that is late could
// take the key after the second one has given it back.
func (g *grant) acquire(ctx context.Context, ttl time.Duration) (reply any, unsafe, err error) {
	c := call{keys: []string{g.name, g.b.counter(g.name)}, args: []any{g.holder, millis(ttl)}}
	return g.b.write(ctx, acquireScript, c, ttl)
}

// acquired reads the reply of acquire.lua.
func acquired(reply any) (token uint64, held *locker.HeldError, err error) {
	if token, ok := reply.(int64); ok && token > 0 {
		return uint64(token), nil, nil
	}
	holder, remaining, ok := holding(reply)
	if !ok {
		return 0, nil, unexpected(reply)
	}
	return 0, &locker.HeldError{Holder: holder, Remaining: remaining}, nil
}

// holding reads a value and its PTTL.
func holding(reply any) (holder string, remaining time.Duration, ok bool) {
	pair, _ := reply.([]any)
	if len(pair) != 2 {
		return "", 0, false
	}
	holder, ok = pair[0].(string)
	left, isNumber := pair[1].(int64)
	if left >= 0 {
		// A key in its last millisecond is still there. Without an expiry it is -1.
		remaining = time.Duration(max(left, 1)) * time.Millisecond
	}
	return holder, remaining, ok && isNumber
}

// millis is d in Redis' unit, rounded up.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// lease is what the store counts for a lease of ttl.
func lease(ttl time.Duration) locker.Lease {
	return locker.Lease{TTL: time.Duration(millis(ttl)) * time.Millisecond}
}

// Token implements locker.Grant.
func (g *grant) Token() uint64 { return g.token }

// Lease implements locker.Grant.
func (g *grant) Lease() locker.Lease { return lease(g.ttl) }

// Renew implements locker.Grant.
func (g *grant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	return g.set(ctx, ttl, "renew")
}

// Release implements locker.Grant.
func (g *grant) Release(ctx context.Context) error {
	reply, err := g.b.run(ctx, releaseScript, []string{g.name}, g.holder, g.b.channel(g.key))
	if err != nil {
		return g.b.failed(err)
	}
	return mine(reply)
}

// Extend implements locker.Extender.
func (b *backend) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	own, ok := g.(*grant)
	if !ok {
		return locker.Lease{}, foreign(g)
	}
	return own.set(ctx, ttl, "extend")
}

func (g *grant) set(ctx context.Context, ttl time.Duration, how string) (locker.Lease, error) {
	reply, unsafe, err := g.b.write(ctx, renewScript, g.setting(ttl, how), ttl)
	return g.b.set(ttl, reply, unsafe, err)
}

// setting is the call of renew.lua that sets the grant's life.
func (g *grant) setting(ttl time.Duration, how string) call {
	return call{keys: []string{g.name}, args: []any{g.holder, millis(ttl), how}}
}

// set reads what renew.lua came to.
func (b *backend) set(ttl time.Duration, reply any, unsafe, err error) (locker.Lease, error) {
	if err != nil {
		return locker.Lease{}, b.failed(err)
	}
	if err := mine(reply); err != nil {
		return locker.Lease{}, err
	}
	if unsafe != nil {
		return locker.Lease{}, b.failed(unsafe)
	}
	return lease(ttl), nil
}

// mine reads the reply of release.lua and renew.lua.
func mine(reply any) error {
	switch reply {
	case int64(1):
		return nil
	case int64(0):
		return &locker.LostError{Reason: locker.ReasonExpired}
	case int64(-1):
		return &locker.LostError{Reason: locker.ReasonTaken}
	}
	return unexpected(reply)
}

func foreign(g locker.Grant) error { return invalidf("a grant of type %T is not this backend's", g) }

// RenewAll implements locker.BatchRenewer: one pipeline for all, or one for each
// node of a cluster at the same time, so that a node which hangs holds up nobody
// but its own locks.
func (b *backend) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(i int, l locker.Lease, err error)) {
	batches := b.byNode(ctx, renewals, answer)
	if len(batches) == 1 {
		for node, batch := range batches {
			b.renew(ctx, node, renewals, batch, answer)
		}
		return
	}
	var wg sync.WaitGroup
	for node, batch := range batches {
		wg.Go(func() { b.renew(ctx, node, renewals, batch, answer) })
	}
	wg.Wait()
}

// byNode divides the renewals, by their indices, among the nodes that serve them.
// Those that are not for this backend are answered.
func (b *backend) byNode(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) map[pipeliner][]int {
	batches := make(map[pipeliner][]int)
	for i, r := range renewals {
		g, ok := r.Grant.(*grant)
		if !ok {
			answer(i, locker.Lease{}, foreign(r.Grant))
			continue
		}
		node, err := b.nodeOf(ctx, g.name)
		if err != nil {
			answer(i, locker.Lease{}, b.failed(err))
			continue
		}
		batches[node] = append(batches[node], i)
	}
	return batches
}

// renew renews the batch, a part of the renewals given by its indices, on the node
// that serves it.
func (b *backend) renew(ctx context.Context, node pipeliner, renewals []locker.Renewal, batch []int, answer func(int, locker.Lease, error)) {
	if b.replicas.want == 0 {
		node = b.rdb // which follows redirections, and has the caller's hooks
	}
	calls := make([]call, len(batch))
	shortest := locker.MaxTTL
	for n, i := range batch {
		calls[n] = renewals[i].Grant.(*grant).setting(renewals[i].TTL, "renew")
		shortest = min(shortest, renewals[i].TTL)
	}
	var moved []int
	b.runAll(ctx, node, renewScript, calls, shortest, func(n int, reply any, unsafe, err error) {
		i := batch[n]
		if b.cluster != nil && isRedirect(err) {
			moved = append(moved, i)
			return
		}
		l, err := b.set(renewals[i].TTL, reply, unsafe, err)
		answer(i, l, err)
	})
	for _, i := range moved {
		l, err := renewals[i].Grant.Renew(ctx, renewals[i].TTL)
		answer(i, l, err)
	}
}
