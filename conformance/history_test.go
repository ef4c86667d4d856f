package conformance_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/internal/testenv"
)

// history runs one on a world of its own, in a bubble.
func history(t *testing.T, seed uint64, set func(*world)) *conformance.HistoryResult {
	t.Helper()
	var result *conformance.HistoryResult
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.server = newServer()
		if set != nil {
			set(w)
		}
		var err error
		result, err = conformance.History(t.Context(), w.harness(), conformance.HistoryConfig{Seed: seed, KillServer: true})
		require.NoError(t, err)
		time.Sleep(time.Minute) // what a Locker has given up on comes to its end
		w.server.stop()
	})
	return result
}

func TestHistory_ofACorrectLockHasNoViolation(t *testing.T) {
	for seed := range uint64(20) {
		r := history(t, seed, nil)
		require.Empty(t, r.Violations, "%v", r)
		require.Greater(t, r.Grants, 20, "%v", r)
		require.NotEmpty(t, r.Faults)
	}
}

func TestHistory_ofLocksOnSessionsHasNoViolation(t *testing.T) { // R4
	for seed := range uint64(20) {
		r := history(t, seed, onSessions)
		require.Empty(t, r.Violations, "%v", r)
		require.Greater(t, r.Grants, 20, "%v", r)
	}
}

// Locks that programs have had instead of one.
var controls = map[string]func(*world){
	"no lock": func(w *world) { w.apart = true },
	"release that deletes whatever is there": func(w *world) {
		w.release = func(ctx context.Context, g *grant) error {
			h, _ := g.c.Inspect(ctx, g.req.Key)
			_, _ = g.c.ForceRelease(ctx, g.req.Key, h.Holder)
			return nil
		}
	},
	"look, then take": func(w *world) {
		w.attempt = func(ctx context.Context, c *client, req locker.Request, next attempt) (locker.Grant, error) {
			h, _ := c.Inspect(ctx, req.Key)
			if h.Holder != "" {
				return nil, &locker.HeldError{Key: req.Key, Holder: h.Holder, Remaining: h.Remaining}
			}
			w.server.elsewhere(time.Millisecond)
			if h, _ = c.Inspect(ctx, req.Key); h.Holder != "" {
				_, _ = c.ForceRelease(ctx, req.Key, h.Holder) // SET without NX
			}
			return next(req)
		}
	},
	"keys that meet": func(w *world) { w.key = func(string) string { return "one" } },
	"lease told twice as long as the store's": func(w *world) { leaseTold(w, 2) },
	"Deadline a margin after the store's end": func(w *world) { leaseTold(w, 1.1) },
	"loss told two margins late": func(w *world) {
		w.locker = locks(func(k locker.Lock, _ locker.Locker) locker.Lock {
			return &lock{Lock: k, done: k.Done(), err: func() error {
				if err := k.Err(); !errors.Is(err, locker.ErrLost) || time.Until(k.Deadline()) < -k.TTL()/10 {
					return err
				}
				return nil
			}}
		})
	},
	"tokens of each client's own": func(w *world) {
		w.token = func(c *client, g *grant) uint64 {
			if g.minted == 0 {
				g.minted = c.tokens.Add(1)
			}
			return g.minted
		}
	},
	"token of the client's clock": func(w *world) {
		w.token = func(c *client, g *grant) uint64 {
			if g.minted == 0 {
				ahead := time.Duration(slices.Index(w.clients, c)) * 100 * time.Millisecond
				g.minted = uint64(time.Now().Add(ahead).UnixMicro())
			}
			return g.minted
		}
	},
	"token minted, then the key taken": func(w *world) {
		var last atomic.Uint64
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			token := last.Add(1)
			w.server.elsewhere(rand.N(req.TTL / 3))
			g, err := next(req)
			if g != nil {
				g.(*grant).minted = token
			}
			return g, err
		}
		w.token = func(_ *client, g *grant) uint64 { return g.minted }
	},
}

// leaseTold has clients told a lease that is so many times the store's.
func leaseTold(w *world, times float64) {
	more := func(ttl time.Duration) time.Duration { return time.Duration(times * float64(ttl)) }
	w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
		g, err := next(req)
		if g != nil {
			g.(*grant).minus = req.TTL - more(req.TTL)
		}
		return g, err
	}
	w.renewed = func(_ *grant, lease locker.Lease, err error) (locker.Lease, error) {
		lease.TTL = more(lease.TTL)
		return lease, err
	}
}

func TestHistory_catchesControls(t *testing.T) {
	for name, set := range controls {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				if r := history(t, seed, set); len(r.Violations) > 0 {
					t.Logf("caught by seed %d: %s", seed, r.Violations[0])
					return
				}
			}
			t.Error("not caught by any of 10 seeds")
		})
	}
}

func TestHistory_cutShortSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		r, err := conformance.History(ctx, newWorld().harness(), conformance.HistoryConfig{})
		require.ErrorIs(t, err, enough)
		require.Nil(t, r)
	})
	for _, cfg := range []conformance.HistoryConfig{{Processes: -1}, {Keys: -1}, {Length: -1}} {
		_, err := conformance.History(t.Context(), newWorld().harness(), cfg)
		require.ErrorContains(t, err, "negative")
	}
}

// durable keeps what it has confirmed, also when it is killed.
var durable = testenv.RedisConfig{AppendOnly: true}

// historiesOn runs some on real servers, with processes. make soak runs many.
func historiesOn(t *testing.T, url string, i *testenv.InCharge, failover bool, seeds ...uint64) {
	h := harnessOf(url)
	h.TTL = 500 * time.Millisecond
	h.Server = &conformance.Server{Pause: i.Pause, Resume: i.Resume, Kill: i.Kill, Restart: i.Restart, Failover: failover}
	for _, seed := range seeds {
		r, err := conformance.History(t.Context(), h, conformance.HistoryConfig{Seed: seed, KillServer: true})
		require.NoError(t, err)
		t.Log(r)
		require.Empty(t, r.Violations)
		require.Positive(t, r.Grants)
		require.NotEmpty(t, r.Faults)
	}
}

// The children are copies of the test binary that come to this test again, and find
// the server by the environment.
func TestRunHistory_startsProcesses(t *testing.T) {
	url := os.Getenv(urlEnv)
	if url == "" {
		url = startRedis(t).URL()
	}
	h := harnessOf(url)
	h.TTL = 200 * time.Millisecond
	conformance.RunHistory(t, h, conformance.HistoryConfig{Seed: 1, Processes: 2})
}

func TestHistory_onRedis(t *testing.T) { // C10, C31, C46, C89, C90
	srv, err := testenv.StartRedis(t.Context(), &durable)
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	historiesOn(t, srv.URL(), srv.InCharge(), false, 1, 2, 3)
}

// Every grant and every renewal waits for all replicas: whoever is promoted knows it.
func TestHistory_onSentinel(t *testing.T) { // C89
	srv, err := testenv.StartSentinel(t.Context(), &testenv.SentinelConfig{Redis: durable})
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	historiesOn(t, srv.URL()+"?replicas=2", srv.InCharge(), true, 1)
}

func TestHistory_onCluster(t *testing.T) { // C83, C89
	const tag = "{history}" // all keys in one slot: the node that breaks is theirs
	srv, err := testenv.StartCluster(t.Context(), &testenv.ClusterConfig{Redis: durable})
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	historiesOn(t, srv.URL()+"?replicas=1&prefix="+tag, srv.InCharge(tag), true, 1)
}
