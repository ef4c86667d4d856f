package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// A mutant is a defect that lock libraries have had. The case meant for it has
// to fail on it; testdata/kills.golden tells all cases that do.
type mutant struct {
	name  string
	meant string
	set   func(*world)
}

var mutants = []mutant{
	// --- The store's part ---
	{"no-expiry", "W1/expiry", func(w *world) {
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			asked := req.TTL
			req.TTL = locker.MaxTTL
			g, err := next(req)
			if g != nil {
				g.(*grant).minus = req.TTL - asked
			}
			return g, err
		}
	}},
	{"store-per-client", "G1/lockers", func(w *world) { w.apart = true }},
	{"release-by-key", "R1/late", func(w *world) {
		w.release = func(ctx context.Context, g *grant) error {
			h, _ := g.c.Inspect(ctx, g.req.Key)
			_, _ = g.c.ForceRelease(ctx, g.req.Key, h.Holder)
			return nil
		}
	}},
	{"release-that-only-says-so", "R2/cancelled-context", func(w *world) {
		w.release = func(context.Context, *grant) error { return nil }
	}},
	{"renewal-re-creates", "H1/not-re-created", func(w *world) {
		w.unsaid = true
		w.renew = reCreates
	}},
	{"renewal-of-whoever-holds", "H1/not-adopted", func(w *world) {
		w.unsaid = true
		var latest sync.Map // the live grant by key
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if g != nil {
				latest.Store(req.Key, g.(*grant).Grant)
			}
			return g, err
		}
		w.renew = func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
			holder, _ := latest.Load(g.req.Key)
			return holder.(locker.Grant).Renew(ctx, ttl)
		}
	}},
	{"renewal-that-says-yes", "H3/forced", func(w *world) {
		w.unsaid = true
		w.renew = func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
			_, _ = g.Grant.Renew(ctx, ttl)
			return locker.Lease{TTL: ttl}, nil
		}
	}},
	{"token-repeats", "G3/token", func(w *world) {
		w.token = func(_ *client, g *grant) uint64 { return g.Grant.Token() / 2 }
	}},
	{"token-per-client", "G3/token", func(w *world) {
		w.attempt = func(_ context.Context, c *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if g != nil {
				g.(*grant).minted = c.tokens.Add(1)
			}
			return g, err
		}
		w.token = func(_ *client, g *grant) uint64 { return g.minted }
	}},
	{"token-counter-expires", "G3/token-after-expiry", func(w *world) {
		// A counter that lives and dies with the lock's key, unless it is released.
		var mu sync.Mutex
		counters := make(map[string]uint64)
		held := make(map[string]bool)
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if g != nil {
				mu.Lock()
				defer mu.Unlock()
				if held[req.Key] {
					counters[req.Key] = 0
				}
				counters[req.Key]++
				held[req.Key] = true
				g.(*grant).minted = counters[req.Key]
			}
			return g, err
		}
		w.release = func(ctx context.Context, g *grant) error {
			mu.Lock()
			delete(held, g.req.Key)
			mu.Unlock()
			return g.Grant.Release(ctx)
		}
		w.token = func(_ *client, g *grant) uint64 { return g.minted }
	}},
	{"counter-per-key", "G3/bounded-counters", func(w *world) {
		var counters sync.Map
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			counters.Store(req.Key+":fence", true)
			return next(req)
		}
		w.names = func(names []string) []string {
			counters.Range(func(name, _ any) bool {
				names = append(names, name.(string))
				return true
			})
			return names
		}
	}},
	{"label-not-stored", "G3/label", func(w *world) {
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			req.Label = ""
			return next(req)
		}
	}},
	{"holder-unknown", "G5/held-error", func(w *world) {
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if he := (*locker.HeldError)(nil); errors.As(err, &he) {
				err = &locker.HeldError{Key: he.Key}
			}
			return g, err
		}
	}},
	{"milliseconds-as-seconds", "K2/as-long-in-store", func(w *world) {
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			asked := req.TTL
			req.TTL *= 1000
			g, err := next(req)
			if g != nil {
				g.(*grant).minus = req.TTL - asked
			}
			return g, err
		}
	}},
	{"ttl-rounded-down", "K2/rounded-up", func(w *world) {
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			req.TTL = max(req.TTL.Truncate(time.Second), time.Millisecond)
			return next(req)
		}
	}},
	{"lease-longer-than-the-store's", "H2/deadline-in-store", func(w *world) {
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if g != nil {
				g.(*grant).minus = -req.TTL / 2
			}
			return g, err
		}
	}},
	{"extend-adds", "K2/extend-sets", func(w *world) {
		w.extend = func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
			h, _ := g.c.Inspect(ctx, g.req.Key)
			return g.setTo(ctx, h.Remaining+ttl)
		}
	}},
	{"extend-never-shortens", "K2/extend-shortens", func(w *world) {
		w.extend = func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
			return g.Grant.Renew(ctx, ttl)
		}
	}},
	{"extend-of-whoever-holds", "H1/expired-is-not-extended", func(w *world) {
		w.locker = locks(func(k locker.Lock, l locker.Locker) locker.Lock {
			return &lock{Lock: k, extend: func(ctx context.Context, ttl time.Duration) error {
				if err := k.Extend(ctx, ttl); !errors.Is(err, locker.ErrLost) {
					return err
				}
				return nil // to whoever holds it now
			}}
		})
	}},
	{"extend-then-forgotten", "K2/extend-lengthens", func(w *world) {
		w.extend = func(_ context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
			return locker.Lease{TTL: ttl}, nil
		}
	}},
	{"keys-ignore-case", "K1/independent", func(w *world) { w.key = strings.ToLower }},
	{"keys-ignore-what-follows-a-slash", "K1/independent", func(w *world) {
		w.key = func(key string) string {
			parts := strings.Split(key, "/")
			return strings.Join(parts[:min(len(parts), 3)], "/")
		}
	}},
	{"keys-cut-at-511-bytes", "K1/longest", func(w *world) {
		w.key = func(key string) string { return key[:min(len(key), 511)] }
	}},
	{"wake-up-lost", "R3/other-locker", func(w *world) { w.deaf = true }},
	{"expiry-is-not-looked-for", "W1/expiry", func(w *world) {
		w.deaf = true
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if he := (*locker.HeldError)(nil); errors.As(err, &he) {
				he.Remaining = locker.MaxTTL
			}
			return g, err
		}
	}},
	{"cancelled-waiter-stays-in-line", "W3/no-residue", func(w *world) {
		w.leave = func(context.Context, *place) error { return nil }
	}},
	{"turn-of-a-cancelled-waiter-dropped", "W3/head-leaves", func(w *world) {
		w.leave = func(ctx context.Context, p *place) error {
			go func() {
				select {
				case <-p.Place.Turn():
					_, _ = p.Place.Claim(context.Background()) // and nobody has it
				case <-p.c.quit:
				}
			}()
			return nil
		}
	}},
	{"acquire-forgotten-when-its-context-ends", "G4/cancelled-acquire", func(w *world) {
		w.latency = time.Millisecond
		w.failed = func(_ *grant, _ bool, err error) (locker.Grant, error) { return nil, err } // "nothing was taken"
	}},
	{"late-grant-is-held", "G8/shortest-lease", func(w *world) {
		w.latency = 4 * time.Millisecond
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				k, err := l.TryAcquire(ctx, key, opts...)
				if errors.Is(err, locker.ErrLost) {
					err = &locker.HeldError{Key: key}
				}
				return k, err
			}}
		})
	}},
	{"waiter-starves", "W2/no-starvation", func(w *world) {
		w.locker = func(l locker.Locker, n int) locker.Locker {
			if n%4 != 2 {
				return l
			}
			return polling(l, 97*time.Millisecond+tick)
		}
	}},

	// --- The part of a store whose locks stand on sessions ---
	{"end-on-a-live-session-not-given-back", "R4/ends-beside-others", func(w *world) {
		onSessions(w)
		info := w.info
		w.info = func(i *locker.Info) {
			info(i)
			i.Multiplexed = false
		}
	}},
	{"session-takes-one-lock-with-it", "R4/lost-session", func(w *world) { withSessions(w).single = true }},
	{"ended-session-used-on", "R4/lost-session", func(w *world) { withSessions(w).clung = true }},
	{"session-re-entrant", "R1/late-in-same-locker", func(w *world) {
		withSessions(w).reentrant = true
		w.since = time.Now // what it gets again has a life of its own
	}},
	{"holder-who-let-go", "G5/session-holder", func(w *world) { withSessions(w).first = make(map[string]string) }},
	{"loss-not-pushed", "H5/pushed", func(w *world) { withSessions(w).mute = true }},

	// --- The Locker's part ---
	{"acquire-context-ends-hold", "G2/acquire-context-ends", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			bound := func(ctx context.Context, k locker.Lock, err error) (locker.Lock, error) {
				if err == nil {
					context.AfterFunc(ctx, func() {
						// It is not renewed any more, and ends a TTL later.
						time.AfterFunc(time.Second+tick, func() { _ = k.Release(context.Background()) })
					})
				}
				return k, err
			}
			return wrapped{Locker: l,
				acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					k, err := l.Acquire(ctx, key, opts...)
					return bound(ctx, k, err)
				},
				try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					k, err := l.TryAcquire(ctx, key, opts...)
					return bound(ctx, k, err)
				},
			}
		})
	}},
	{"dead-context-ignored", "G6/dead-context", acquires(func(ctx context.Context, do acquiring) (locker.Lock, error) {
		if ctx.Err() != nil {
			ctx = context.WithoutCancel(ctx)
		}
		return do(ctx)
	})},
	{"dead-context-is-held", "G6/dead-context", errorsOf(func(ctx context.Context, err error) error {
		if ctx.Err() != nil {
			return errors.Join(err, locker.ErrHeld)
		}
		return err
	})},
	{"cause-dropped", "G6/wait-cancelled", errorsOf(func(ctx context.Context, err error) error {
		switch {
		case ctx.Err() == nil:
			return err
		case errors.Is(err, locker.ErrHeld):
			return errors.Join(ctx.Err(), locker.ErrHeld)
		}
		return ctx.Err()
	})},
	{"bare-context-error", "G6/wait-timed-out", errorsOf(func(ctx context.Context, err error) error {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), context.Cause(ctx))
		}
		return err
	})},
	{"not-held-is-held", "G7/held-means-held", errorsOf(func(_ context.Context, err error) error {
		if errors.Is(err, locker.ErrClosed) || errors.Is(err, locker.ErrInvalid) {
			return errors.Join(err, locker.ErrHeld)
		}
		return err
	})},
	{"held-without-details", "G5/prompt", errorsOf(func(_ context.Context, err error) error {
		if he := (*locker.HeldError)(nil); errors.As(err, &he) {
			return fmt.Errorf("%w", locker.ErrHeld)
		}
		return err
	})},
	{"no-lock-and-no-error", "G7/lock-or-error", errorsOf(func(_ context.Context, err error) error {
		if errors.Is(err, locker.ErrHeld) {
			return nil
		}
		return err
	})},
	{"asks-before-it-checks", "G6/dead-context-sends-nothing", func(w *world) {
		acquires(func(ctx context.Context, do acquiring) (locker.Lock, error) {
			w.requests.Add(1)
			return do(ctx)
		})(w)
	}},
	{"bad-options-mended", "K2/bad-ttl", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			mend := []locker.Option{locker.WithTTL(time.Second), locker.WithLabel(""), locker.WithMaxHold(time.Hour)}
			return wrapped{Locker: l,
				acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					k, err := l.Acquire(ctx, key, opts...)
					if errors.Is(err, locker.ErrInvalid) {
						return l.Acquire(ctx, key, mend...)
					}
					return k, err
				},
				try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					k, err := l.TryAcquire(ctx, key, opts...)
					if errors.Is(err, locker.ErrInvalid) {
						return l.TryAcquire(ctx, key, mend...)
					}
					return k, err
				},
			}
		})
	}},
	{"bad-label-cut", "G3/bad-label", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				k, err := l.TryAcquire(ctx, key, opts...)
				if err != nil && strings.Contains(err.Error(), "label") {
					return l.TryAcquire(ctx, key)
				}
				return k, err
			}}
		})
	}},
	{"bad-key-mended", "K1/invalid", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				k, err := l.TryAcquire(ctx, key, opts...)
				if err != nil && strings.Contains(err.Error(), "key") && errors.Is(err, locker.ErrInvalid) {
					return l.TryAcquire(ctx, fmt.Sprintf("%x ", key)[:min(2*len(key)+1, 512)], opts...)
				}
				return k, err
			}}
		})
	}},
	{"options-ignored", "H3/max-hold", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l,
				acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					return l.Acquire(ctx, key, opts[:1]...)
				},
				try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					return l.TryAcquire(ctx, key, opts[:1]...)
				},
			}
		})
	}},
	{"no-renewal", "H1/renewed", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l,
				acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					return l.Acquire(ctx, key, append(opts, locker.WithoutRenewal())...)
				},
				try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					return l.TryAcquire(ctx, key, append(opts, locker.WithoutRenewal())...)
				},
			}
		})
	}},
	{"re-entrant", "G1/not-re-entrant", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			var mine sync.Map // live locks by key
			keep := func(k locker.Lock, err error) (locker.Lock, error) {
				if err == nil {
					mine.Store(k.Key(), k)
				}
				return k, err
			}
			again := func(ctx context.Context, key string) (locker.Lock, bool) {
				k, ok := mine.Load(key)
				if !ok || ctx.Err() != nil || k.(locker.Lock).Err() != nil {
					return nil, false
				}
				return k.(locker.Lock), true
			}
			return wrapped{Locker: l,
				acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					if k, ok := again(ctx, key); ok {
						return k, nil
					}
					return keep(l.Acquire(ctx, key, opts...))
				},
				try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					if k, ok := again(ctx, key); ok {
						return k, nil
					}
					return keep(l.TryAcquire(ctx, key, opts...))
				},
			}
		})
	}},
	{"polls-for-every-waiter", "W2/one-remote-waiter", func(w *world) {
		w.locker = func(l locker.Locker, _ int) locker.Locker { return polling(l, 7*time.Millisecond+tick) }
	}},
	{"last-come-first-served", "W2/first-come-first-served", func(w *world) {
		w.locker = func(l locker.Locker, _ int) locker.Locker { return lastFirst(l) }
	}},
	{"wait-outlasts-its-context", "W3/prompt", acquires(func(ctx context.Context, do acquiring) (locker.Lock, error) {
		k, err := do(ctx)
		if ctx.Err() != nil && errors.Is(err, locker.ErrHeld) {
			time.Sleep(6 * time.Second) // the rest of its back-off
		}
		return k, err
	})},
	{"closed-locker-goes-on", "House/close", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, close: func(context.Context) error { return nil }}
		})
	}},
	{"close-forgets-locks", "House/close-releases-the-rest", func(w *world) {
		w.release = func(ctx context.Context, g *grant) error {
			if g.c.closing.Load() {
				return nil
			}
			return g.Grant.Release(ctx)
		}
		w.locker = func(l locker.Locker, n int) locker.Locker {
			return lockers(func(l locker.Locker, _ int) wrapped {
				return wrapped{Locker: l, close: func(ctx context.Context) error {
					w.clientOf(n).closing.Store(true)
					return l.Close(ctx)
				}}
			})(l, n)
		}
	}},
	{"close-does-not-wait", "House/close-waits", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, close: func(ctx context.Context) error {
				over, cancel := context.WithCancel(ctx)
				cancel()
				return l.Close(over)
			}}
		})
	}},
	{"second-close-fails", "House/close-twice", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			var once sync.Once
			return wrapped{Locker: l, close: func(ctx context.Context) error {
				err := locker.ErrClosed
				once.Do(func() { err = l.Close(ctx) })
				return err
			}}
		})
	}},
	{"goroutine-per-wait-left-behind", "House/goroutines", func(w *world) {
		w.locker = func(l locker.Locker, n int) locker.Locker {
			return lockers(func(l locker.Locker, _ int) wrapped {
				return wrapped{Locker: l, acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					c := w.clientOf(n)
					go func() { <-c.quit }()
					return l.Acquire(ctx, key, opts...)
				}}
			})(l, n)
		}
	}},
	{"list-of-names-in-the-store", "House/list", func(w *world) {
		w.list = func(ctx context.Context, yield func(string, locker.Holding) bool, next listing) error {
			return next(ctx, func(key string, h locker.Holding) bool { return yield("app:"+key, h) })
		}
	}},
	{"list-of-the-first-page", "House/list", func(w *world) {
		w.list = func(ctx context.Context, yield func(string, locker.Holding) bool, next listing) error {
			n := 0
			return next(ctx, func(key string, h locker.Holding) bool {
				n++
				return yield(key, h) && n < 10
			})
		}
	}},
	{"list-does-not-stop", "House/list-stops", func(w *world) {
		w.list = func(ctx context.Context, yield func(string, locker.Holding) bool, next listing) error {
			return next(context.WithoutCancel(ctx), func(key string, h locker.Holding) bool {
				yield(key, h)
				return true
			})
		}
	}},
	{"goroutine-per-lock", "House/many-locks", func(w *world) {
		w.locker = func(l locker.Locker, n int) locker.Locker {
			return locks(func(k locker.Lock, _ locker.Locker) locker.Lock {
				go func() { <-k.Done() }()
				return k
			})(l, n)
		}
	}},
	{"key-dead-after-a-loss", "House/usable-after-loss", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			var taken sync.Map
			return wrapped{Locker: l, acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				if k, ok := taken.Load(key); ok && errors.Is(k.(locker.Lock).Err(), locker.ErrLost) {
					return nil, k.(locker.Lock).Err()
				}
				k, err := l.Acquire(ctx, key, opts...)
				if err == nil {
					taken.Store(key, k)
				}
				return k, err
			}}
		})
	}},
	{"extend-declared-away", "K2/extend-or-unsupported", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l, lacks: locker.CapExtend}
		})
	}},

	// --- The Lock's part ---
	{"owner-repeats", "G3/owner", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, owner: "00000000-0000-4000-8000-000000000001"}
	})},
	{"key-altered", "K1/exact", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, key: "lock:" + k.Key()}
	})},
	{"no-loss-signal", "H2/lost-at-deadline", ofLocks(func(k locker.Lock) *lock {
		done := make(chan struct{})
		var once sync.Once
		return &lock{Lock: k, done: done,
			err: func() error {
				if err := k.Err(); !errors.Is(err, locker.ErrLost) {
					return err
				}
				return nil
			},
			release: func(ctx context.Context) error {
				defer once.Do(func() { close(done) })
				return k.Release(ctx)
			},
		}
	})},
	{"loss-noticed-by-a-slow-ticker", "H2/err-at-first-call", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, err: func() error {
			if time.Since(k.Deadline()) < 300*time.Millisecond {
				if err := k.Err(); !errors.Is(err, locker.ErrLost) {
					return err
				}
				return nil
			}
			return k.Err()
		}}
	})},
	{"deadline-without-margin", "H2/deadline", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, deadline: func() time.Time { return k.Deadline().Add(5 * time.Millisecond) }}
	})},
	{"closed-is-released", "H3/closed", ofLocks(func(k locker.Lock) *lock {
		closedIsReleased := func(err error) error {
			if le := (*locker.LostError)(nil); errors.As(err, &le) && le.Reason == locker.ReasonClosed {
				return locker.ErrReleased
			}
			return err
		}
		return &lock{Lock: k,
			err:     func() error { return closedIsReleased(k.Err()) },
			release: func(ctx context.Context) error { return closedIsReleased(k.Release(ctx)) },
		}
	})},
	{"released-is-lost", "H4/released", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, err: func() error {
			if err := k.Err(); !errors.Is(err, locker.ErrReleased) {
				return err
			}
			return &locker.LostError{Key: k.Key(), Reason: locker.ReasonExpired}
		}}
	})},
	{"release-leaves-done-open", "H4/context-of-released-lock", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, done: make(chan struct{})}
	})},
	{"late-release-says-nil", "R1/late", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, release: func(ctx context.Context) error {
			if err := k.Release(ctx); !errors.Is(err, locker.ErrLost) {
				return err
			}
			return nil
		}}
	})},
	{"release-honours-its-context", "R2/cancelled-context", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, release: func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return k.Release(ctx)
		}}
	})},
	{"second-release-fails", "R1/twice", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, release: func(ctx context.Context) error {
			if errors.Is(k.Err(), locker.ErrReleased) {
				return locker.ErrReleased
			}
			return k.Release(ctx)
		}}
	})},
	{"second-release-by-key", "R1/twice", func(w *world) {
		w.locker = locks(func(k locker.Lock, l locker.Locker) locker.Lock {
			return &lock{Lock: k, release: func(ctx context.Context) error {
				if errors.Is(k.Err(), locker.ErrReleased) {
					i := l.(locker.Inspector)
					h, _ := i.Inspect(ctx, k.Key())
					_, _ = i.ForceRelease(ctx, k.Key(), h.Holder)
				}
				return k.Release(ctx)
			}}
		})
	}},
	{"bad-extension-mended", "K2/extend-bad-ttl", ofLocks(func(k locker.Lock) *lock {
		return &lock{Lock: k, extend: func(ctx context.Context, ttl time.Duration) error {
			return k.Extend(ctx, min(max(ttl, locker.MinTTL), locker.MaxTTL))
		}}
	})},
}

// reCreates renews, and takes the key again if it was lost.
func reCreates(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
	lease, err := g.Grant.Renew(ctx, ttl)
	if errors.Is(err, locker.ErrLost) {
		req := g.req
		req.TTL = ttl
		if again, err := g.c.inner.TryAcquire(ctx, req); err == nil {
			g.Grant = again
			return again.Lease(), nil
		}
	}
	return lease, err
}
