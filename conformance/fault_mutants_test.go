package conformance_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
)

// faultMutants are defects that show when something else breaks, too.
var faultMutants = []mutant{
	// --- The backend's part ---
	{"own-grant-is-held", "G4/lost-reply", func(w *world) {
		w.failed = func(g *grant, unknown bool, err error) (locker.Grant, error) {
			if !unknown {
				return nil, err
			}
			return g, &locker.HeldError{Key: g.req.Key, Holder: g.req.Holder()}
		}
	}},
	{"unknown-outcome-is-not-undone", "G4/cancelled-in-flight", func(w *world) {
		w.failed = func(_ *grant, _ bool, err error) (locker.Grant, error) { return nil, err }
	}},
	{"outage-is-held", "G7/outage", func(w *world) {
		w.failed = func(g *grant, unknown bool, err error) (locker.Grant, error) {
			return unanswered(g, unknown, &locker.HeldError{Key: g.req.Key})
		}
	}},
	{"error-is-a-grant", "G7/cut-anywhere", func(w *world) {
		w.failed = func(g *grant, unknown bool, err error) (locker.Grant, error) {
			if !unknown {
				return nil, err
			}
			return &grant{c: g.c, req: g.req}, nil // g is the server's, which may still be at it
		}
	}},
	{"outage-ends-the-wait", "W4/outage", func(w *world) {
		w.failed = func(g *grant, unknown bool, err error) (locker.Grant, error) {
			return unanswered(g, unknown, locker.Permanent(err))
		}
	}},
	{"lease-from-the-reply", "G8/late-grant", func(w *world) {
		w.since = time.Now
		w.renewed = func(_ *grant, lease locker.Lease, err error) (locker.Lease, error) {
			lease.Since = time.Now()
			return lease, err
		}
	}},
	{"first-failed-renewal-is-a-loss", "H3/passing-failure", func(w *world) {
		w.renewed = func(_ *grant, lease locker.Lease, err error) (locker.Lease, error) {
			if err != nil {
				err = &locker.LostError{Reason: locker.ReasonExpired}
			}
			return lease, err
		}
	}},
	{"renewal-waits-for-the-hung-one", "H1/stranded-connections", func(w *world) { w.patient = true }},
	{"slow-renewal-ends-the-lock", "H1/hung-renewal", func(w *world) {
		w.renewed = func(g *grant, lease locker.Lease, err error) (locker.Lease, error) {
			if err != nil {
				_, _ = g.c.ForceRelease(context.Background(), g.req.Key, g.req.Holder())
			}
			return lease, err
		}
	}},
	{"token-starts-anew-with-the-server", "G3/token-after-restart", func(w *world) {
		var last atomic.Uint64
		w.server = serverOf(w)
		w.server.started = func() { last.Store(0) }
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if g != nil {
				g.(*grant).minted = last.Add(1)
			}
			return g, err
		}
		w.token = func(_ *client, g *grant) uint64 { return g.minted }
	}},
	{"restart-loses-locks-and-renewal-re-creates-them", "H3/server-restarted", func(w *world) {
		w.unsaid = true
		w.server = serverOf(w)
		w.server.started = func() {
			for _, c := range w.clients {
				for _, key := range w.store.Keys() {
					h, _ := c.Inspect(context.Background(), key)
					_, _ = c.ForceRelease(context.Background(), key, h.Holder)
				}
			}
		}
		w.renew = reCreates
	}},
	{"release-sent-again-is-a-loss", "R2/lost-reply", func(w *world) { w.resends = true }},
	{"subscription-not-renewed", "W1/lost-subscription", func(w *world) {
		w.turn = func(p *place) <-chan struct{} {
			if p.c.conns == nil {
				return p.Place.Turn()
			}
			// The turns come by a connection of their own. When it breaks, that was it.
			turns := make(chan struct{}, 1)
			broken := make(chan struct{})
			conn, err := p.c.conns.dial(context.Background(), "tcp", "store")
			if err != nil {
				return turns
			}
			go func() {
				defer close(broken)
				_, _ = conn.Read(make([]byte, 1))
			}()
			go func() {
				defer conn.Close()
				for {
					select {
					case <-p.Place.Turn():
						select {
						case turns <- struct{}{}:
						default:
						}
					case <-broken:
						return
					case <-p.c.quit:
						return
					}
				}
			}()
			return turns
		}
	}},
	{"turn-is-a-grant", "W5/unreachable-waiter", func(w *world) {
		w.turn = func(p *place) <-chan struct{} {
			turns := make(chan struct{}, 1)
			go func() {
				select {
				case <-p.Place.Turn():
					// The store takes the key for the waiter, reachable or not.
					if p.c.conns != nil {
						_, _ = p.Place.Claim(context.Background())
					}
					turns <- struct{}{}
				case <-p.c.quit:
				}
			}()
			return turns
		}
	}},
	{"goroutine-per-failure", "House/goroutines-after-faults", func(w *world) {
		w.failed = func(g *grant, unknown bool, err error) (locker.Grant, error) {
			go time.Sleep(30 * time.Second)
			return unanswered(g, unknown, err)
		}
	}},

	// --- The Locker's part ---
	{"calls-outlast-their-context", "G6/unreachable", acquires(func(ctx context.Context, do acquiring) (locker.Lock, error) {
		if err := ctx.Err(); err != nil {
			return do(ctx)
		}
		return do(context.WithoutCancel(ctx))
	})},
	{"driver-error-dropped", "W4/outage-without-end", errorsOf(func(ctx context.Context, err error) error {
		if ctx.Err() != nil && !errors.Is(err, locker.ErrHeld) {
			return &locker.Error{Op: "acquire", Err: errors.Join(ctx.Err(), context.Cause(ctx))}
		}
		return err
	})},
	{"cancelled-wait-needs-the-store", "W3/cancelled-in-outage", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				k, err := l.Acquire(ctx, key, opts...)
				for ctx.Err() != nil && errors.Is(err, locker.ErrHeld) {
					time.Sleep(tick)
					probe, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
					_, answer := l.TryAcquire(probe, key, opts...)
					cancel()
					if errors.Is(answer, locker.ErrHeld) || errors.Is(answer, locker.ErrClosed) {
						break
					}
				}
				return k, err
			}}
		})
	}},
	{"no-back-off", "W4/outage", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				for {
					k, err := l.TryAcquire(ctx, key, opts...)
					var outage *locker.Error
					if err == nil || errors.Is(err, locker.ErrHeld) || ctx.Err() != nil || !errors.As(err, &outage) {
						if errors.Is(err, locker.ErrHeld) {
							return l.Acquire(ctx, key, opts...)
						}
						return k, err
					}
					time.Sleep(tick)
				}
			}}
		})
	}},
	{"close-needs-the-store", "House/close-in-outage", func(w *world) {
		w.locker = func(l locker.Locker, n int) locker.Locker {
			return lockers(func(l locker.Locker, _ int) wrapped {
				return wrapped{Locker: l, close: func(ctx context.Context) error {
					c := w.clientOf(n)
					for start := time.Now(); c.conns != nil && time.Since(start) < 20*time.Second; {
						probe, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
						_, err := c.conns.request(probe, func() {})
						cancel()
						if err == nil {
							break
						}
						time.Sleep(tick)
					}
					return l.Close(ctx)
				}}
			})(l, n)
		}
	}},

	// --- The Lock's part ---
	{"loss-told-by-the-hung-renewal", "H2/black-hole", losesLate(func(k locker.Lock, _ locker.Locker) {
		time.Sleep(k.TTL() / 10) // the driver's time-out
	})},
	{"loss-told-when-the-store-answers", "H2/replies-lost", losesLate(func(k locker.Lock, l locker.Locker) {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			probe, err := l.TryAcquire(ctx, k.Key())
			cancel()
			if err == nil {
				_ = probe.Release(context.Background())
			}
			if err == nil || errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrClosed) {
				return
			}
			time.Sleep(tick)
		}
	})},
	{"failed-release-is-forgotten", "R2/retried", ofLocks(func(k locker.Lock) *lock {
		var asked atomic.Bool
		return &lock{Lock: k, release: func(ctx context.Context) error {
			if asked.Swap(true) {
				return nil
			}
			return k.Release(ctx)
		}}
	})},
	{"release-without-bound", "R2/dead-network", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, release: func(ctx context.Context) error {
			for {
				err := k.Release(context.WithoutCancel(ctx))
				if err == nil || errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrClosed) {
					return err
				}
			}
		}}
	})},
}

// serverOf is the world's server, or a new one.
func serverOf(w *world) *server {
	if w.server == nil {
		w.server = newServer()
	}
	return w.server
}

// losesLate makes Locks whose loss is not told before late has returned.
func losesLate(late func(k locker.Lock, l locker.Locker)) func(*world) {
	return func(w *world) {
		w.locker = locks(func(k locker.Lock, l locker.Locker) locker.Lock {
			done := make(chan struct{})
			var over atomic.Bool
			go func() {
				defer close(done)
				defer over.Store(true)
				<-k.Done()
				if errors.Is(k.Err(), locker.ErrLost) {
					late(k, l)
				}
			}()
			return &lock{Lock: k, done: done, err: func() error {
				if over.Load() || !errors.Is(k.Err(), locker.ErrLost) {
					return k.Err()
				}
				return nil
			}}
		})
	}
}
