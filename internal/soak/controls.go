package main

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
)

// control is a lock that is known to be broken, as a scheme of its own: what follows
// the scheme is as in redis://.
type control struct {
	scheme  string
	acquire func(ctx context.Context, rdb *redis.Client, req locker.Request) (taken bool, err error)
	release string // a script
}

var controls = []control{
	{"no-lock", func(ctx context.Context, rdb *redis.Client, _ locker.Request) (bool, error) {
		return true, rdb.Ping(ctx).Err() // the server is asked, and not for a lock
	}, compareAndDelete},
	{"blind-delete", func(ctx context.Context, rdb *redis.Client, req locker.Request) (bool, error) {
		return rdb.SetNX(ctx, req.Key, req.Owner, req.TTL).Result()
	}, `redis.call('DEL', KEYS[1]) return 1`},
	{"check-then-set", func(ctx context.Context, rdb *redis.Client, req locker.Request) (bool, error) {
		if n, err := rdb.Exists(ctx, req.Key).Result(); err != nil || n > 0 {
			return false, err
		}
		return true, rdb.Set(ctx, req.Key, req.Owner, req.TTL).Err()
	}, compareAndDelete},
}

const (
	compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
	compareAndExpire = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`
)

func registerControls() {
	for _, c := range controls {
		locker.Register(c.scheme, func(_ context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
			opts, err := redis.ParseURL("redis" + strings.TrimPrefix(u.String(), c.scheme))
			if err != nil {
				return nil, err
			}
			opts.Dialer, opts.ContextTimeoutEnabled = cfg.Dial, true
			return locker.New(&controlBackend{c, redis.NewClient(opts)}, &cfg.Config)
		})
	}
}

// harness is h with the control in its place.
func (c control) harness(h conformance.Harness) conformance.Harness {
	_, rest, _ := strings.Cut(strings.TrimPrefix(h.Env[0], urlEnv+"="), "://")
	broken := harness(c.scheme + "://" + rest)
	broken.Server = h.Server
	return broken
}

type controlBackend struct {
	control
	rdb *redis.Client
}

func (b *controlBackend) Info() locker.Info {
	return locker.Info{
		Name: b.scheme, Can: locker.CapExclusive | locker.CapExpiry,
		Unit: time.Millisecond, MinTTL: time.Millisecond, Deadlines: true,
	}
}

func (b *controlBackend) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	g := &controlGrant{b, req}
	taken, err := b.acquire(ctx, b.rdb, req)
	switch {
	case err != nil:
		return g, err
	case !taken:
		return nil, &locker.HeldError{}
	}
	return g, nil
}

func (b *controlBackend) Close(context.Context) error { return b.rdb.Close() }

type controlGrant struct {
	b   *controlBackend
	req locker.Request
}

func (g *controlGrant) Token() uint64       { return 0 }
func (g *controlGrant) Lease() locker.Lease { return locker.Lease{TTL: g.req.TTL} }

func (g *controlGrant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	if g.b.scheme == "no-lock" {
		return locker.Lease{TTL: ttl}, nil
	}
	return locker.Lease{TTL: ttl}, g.eval(ctx, compareAndExpire, ttl.Milliseconds())
}

func (g *controlGrant) Release(ctx context.Context) error {
	if g.b.scheme == "no-lock" {
		return nil
	}
	return g.eval(ctx, g.b.release)
}

func (g *controlGrant) eval(ctx context.Context, script string, args ...any) error {
	n, err := g.b.rdb.Eval(ctx, script, []string{g.req.Key}, append([]any{g.req.Owner}, args...)...).Int()
	if err == nil && n == 0 {
		err = &locker.LostError{Reason: locker.ReasonExpired}
	}
	return err
}
