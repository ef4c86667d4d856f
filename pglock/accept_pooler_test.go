package pglock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// bouncer starts a PgBouncer for this test alone.
func bouncer(t testing.TB, srv *testenv.Postgres, cfg testenv.PgBouncerConfig) *testenv.PgBouncer {
	t.Helper()
	cfg.Settings = append(cfg.Settings, "auth_type = trust") // no time for passwords
	b, err := testenv.StartPgBouncer(t.Context(), srv, &cfg)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, b.Stop()) })
	return b
}

// A session lock behind a pooler that gives its sessions to others is nobody's. It is
// refused, however the pooler deals them out, and whoever else uses them.
func TestPooler_oneThatSharesSessionsIsRefused(t *testing.T) { // C98
	t.Parallel()
	const trials = 20
	srv := startServer(t)
	for _, l := range []string{"advisory", "row"} { // what is missing is not the reason
		closeNow(t, openOn(t, srv.URL(), l, nil))
	}
	for name, cfg := range map[string]testenv.PgBouncerConfig{
		"transactions":                    {Mode: "transaction"},
		"transactions, 1 session":         {Mode: "transaction", PoolSize: 1},
		"transactions, 3 sessions":        {Mode: "transaction", PoolSize: 3},
		"transactions, by turns":          {Mode: "transaction", PoolSize: 3, Settings: []string{"server_round_robin = 1"}},
		"transactions, many by turns":     {Mode: "transaction", Settings: []string{"server_round_robin = 1"}},
		"statements":                      {Mode: "statement"},
		"statements, 3 sessions by turns": {Mode: "statement", PoolSize: 3, Settings: []string{"server_round_robin = 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bouncer(t, srv, cfg)
			for _, traffic := range []bool{false, true} {
				ctx, stop := context.WithCancel(t.Context())
				var others sync.WaitGroup
				if traffic {
					pool := connect(t, b.URL(), maxConns(6), simple)
					for range 6 {
						others.Go(func() {
							for ctx.Err() == nil {
								_, _ = pool.Exec(ctx, "SELECT pg_sleep(0.001)")
							}
						})
					}
				}
				refused := map[string]int{}
				for range trials {
					pool := connect(t, b.URL(), simple)
					for mode, open := range map[string]func() (locker.Locker, error){
						"New":    func() (locker.Locker, error) { return New(ctx, pool, nil) },
						"NewRow": func() (locker.Locker, error) { return NewRow(ctx, pool, nil) },
					} {
						l, err := open()
						if err == nil {
							closeNow(t, l)
						}
						if assert.ErrorIs(t, err, errPooler, mode) &&
							assert.ErrorContains(t, err, "NewLease") && assert.ErrorContains(t, err, "locker_mode=lease") {
							refused[mode]++
						}
					}
					pool.Close()
				}
				stop()
				others.Wait()
				t.Logf("%s, other traffic %v: New refused %d of %d, NewRow %d of %d", name, traffic, refused["New"], trials, refused["NewRow"], trials)
			}
		})
	}
}

// simple is what PgBouncer wants of a pgx pool.
func simple(cfg *pgxpool.Config) {
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
}

// One that keeps a session for its client is as good as the server.
func TestPooler_oneThatKeepsSessionsWorks(t *testing.T) { // C98
	t.Parallel()
	srv := startServer(t)
	direct := connect(t, srv.URL())
	b := bouncer(t, srv, testenv.PgBouncerConfig{Mode: "session"})
	for _, mode := range []string{"advisory", "row"} {
		l, near := openOn(t, b.URL(), mode, nil), openOn(t, srv.URL(), mode, nil)
		require.NoError(t, locker.Do(t.Context(), l, "k", func(ctx context.Context, _ locker.Lock) error {
			_, err := near.TryAcquire(ctx, "k")
			assert.ErrorIs(t, err, locker.ErrHeld)
			return nil
		}))
		var freed figures
		for i := range 5 {
			key := fmt.Sprint(mode, i)
			c := startChild(t, withMode(b.URL(), mode), 30*time.Second, key, "")
			w := waitFor(t, near, key)
			if mode == "advisory" {
				awaitMarks(t, direct, Key("", key), 1)
			} else {
				blocked(t, direct)
			}
			start := time.Now()
			require.NoError(t, c.cmd.Process.Kill())
			_, at := w.lock(t)
			freed.add(at.Sub(start))
		}
		freed.print(t, mode+" through a pooler by sessions, client killed: free", 1200*time.Millisecond, 4*time.Second)
	}
}

// The only session is the first one's: a second is not to be had, but that is no reason.
func TestPooler_oneSessionIsNotTakenForASharedOne(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	b := bouncer(t, srv, testenv.PgBouncerConfig{Mode: "session", PoolSize: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	l, err := New(ctx, connect(t, b.URL(), simple), &Config{Create: true})
	require.NoError(t, err)
	k, err := l.TryAcquire(ctx, "k")
	require.NoError(t, err)
	t.Logf("one session: New and an acquire in %v", time.Since(start).Round(time.Millisecond))
	require.NoError(t, k.Release(ctx))
	closeNow(t, l)
}
