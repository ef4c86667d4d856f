package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// One session holds them, one listens; a tick of renewals is one statement.
func TestLoad_aThousandLocksTakeTwoConnections(t *testing.T) {
	t.Parallel()
	const locks, ttl = 1000, 6 * time.Second
	database := newDatabase(t)
	looker := connect(t, database)
	var conns traffic
	var renewals atomic.Int64
	cfg := &locker.OpenConfig{Dial: conns.dial, Config: locker.Config{TTL: ttl, Observer: func(e locker.Event) {
		if lost := (*locker.LostError)(nil); errors.As(e.Err, &lost) {
			assert.Equal(t, locker.ReasonClosed, lost.Reason)
		}
		if e.Kind == locker.EventRenewed {
			renewals.Add(1)
		}
	}}}
	l := openOn(t, withParam(t, database, "application_name", "thousand"), "advisory&locker_max_locks=1001", cfg)
	acquire(t, openOn(t, database, "advisory", nil), "another's")
	waitFor(t, l, "another's")
	awaitMarks(t, looker, Key("", "another's"), 1)

	start := time.Now()
	var all sync.WaitGroup
	for i := range locks {
		all.Go(func() {
			_, err := l.TryAcquire(context.Background(), fmt.Sprint(i))
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.False(t, t.Failed())
	t.Logf("%d locks taken together in %v", locks, time.Since(start).Round(time.Millisecond))
	require.Equal(t, locks, value[int](t, looker, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND objsubid = 1 AND application_name = 'thousand [locker 6s]'`))
	shown := value[string](t, looker, `SELECT string_agg(application_name, ', ' ORDER BY application_name) FROM pg_stat_activity
		WHERE application_name LIKE 'thousand%'`)
	t.Logf("its connections: %s", shown)
	require.Equal(t, "thousand [locker 6s], thousand [locker listens]", shown)

	// Two rounds of renewals, of which the first begins with what was taken first.
	session := conns.of(t, looker, "thousand [locker 6s]")
	before := session.statements.Load()
	require.Eventually(t, func() bool { return renewals.Load() >= 3*locks }, 2*ttl, 5*time.Millisecond)
	statements := session.statements.Load() - before
	t.Logf("%d renewals by %d statements", renewals.Load(), statements)
	require.LessOrEqual(t, statements, int64(6))
}

// of is the connection of the session with an application_name, found by its client's port.
func (n *traffic) of(t *testing.T, pool *pgxpool.Pool, application string) *countedConn {
	t.Helper()
	port := value[int](t, pool, "SELECT client_port FROM pg_stat_activity WHERE application_name = $1", application)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if strings.HasSuffix(c.LocalAddr().String(), fmt.Sprint(":", port)) {
			return c
		}
	}
	t.Fatal("no such connection: ", application)
	return nil
}

// Two statements: one takes, one gives.
func TestLoad_anUncontendedCycleIsTwoStatements(t *testing.T) {
	t.Parallel()
	const cycles = 100
	for _, mode := range []string{"advisory", "lease"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			database := newDatabase(t)
			var conns traffic
			l := openOn(t, database, mode, &locker.OpenConfig{Dial: conns.dial})
			require.NoError(t, acquire(t, l, "k").Release(t.Context()))
			before := conns.sent()
			for range cycles {
				require.NoError(t, acquire(t, l, "k").Release(t.Context()))
			}
			after := conns.sent()
			t.Logf("%d statements in %d cycles", after-before, cycles)
			require.Equal(t, int64(2*cycles), after-before)
		})
	}
}

// Who waits costs a statement a second, whatever the number of goroutines, and one connection.
func TestLoad_twoHundredWaitersOfAKeyAreOne(t *testing.T) { // W1, W2
	t.Parallel()
	const goroutines, lasting = 200, 10 * time.Second
	database := newDatabase(t)
	looker := connect(t, database)
	acquire(t, openOn(t, database, "advisory", nil), "k")
	var conns traffic
	l := openOn(t, withParam(t, database, "application_name", "crowd"), "advisory", &locker.OpenConfig{Dial: conns.dial})
	sessions := func() int {
		return value[int](t, looker, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'crowd%'")
	}
	require.Equal(t, 1, sessions(), "the lock session")
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	before := conns.sent()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			_, err := l.Acquire(ctx, "k")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	awaitMarks(t, looker, Key("", "k"), 1)
	require.Equal(t, 2, sessions(), "and the one that listens")
	all.Wait()
	after := conns.sent()
	t.Logf("%d goroutines waited for %v: %d statements, one connection more", goroutines, lasting, after-before)
	require.LessOrEqual(t, after-before, int64(30))
}

// The work under the lock has the only connection of the pool.
func TestLoad_aPoolOfOneConnectionDoesNotHang(t *testing.T) { // C64
	t.Parallel()
	const goroutines, cycles = 10, 10
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	t.Cleanup(cancel)
	cfg := locker.Config{TTL: 2 * time.Second}
	for mode, open := range map[string]func(pool *pgxpool.Pool) (locker.Locker, error){
		"advisory": func(pool *pgxpool.Pool) (locker.Locker, error) {
			return New(ctx, pool, &Config{Config: cfg, Create: true})
		},
		"blocked waiters": func(pool *pgxpool.Pool) (locker.Locker, error) {
			return New(ctx, pool, &Config{Config: cfg, Create: true, BlockedWaiters: true})
		},
		"lease": func(pool *pgxpool.Pool) (locker.Locker, error) {
			return NewLease(ctx, pool, &LeaseConfig{Config: cfg, Create: true, Listen: pool})
		},
		"row": func(pool *pgxpool.Pool) (locker.Locker, error) {
			return NewRow(ctx, pool, &RowConfig{Config: cfg, Create: true})
		},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := connect(t, newDatabase(t), maxConns(1))
			l, err := open(pool)
			require.NoError(t, err)
			defer closeNow(t, l)
			start := time.Now()
			var all sync.WaitGroup
			for range goroutines {
				all.Go(func() {
					for range cycles {
						assert.NoError(t, locker.Do(ctx, l, "k", func(ctx context.Context, _ locker.Lock) error {
							return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
								_, err := tx.Exec(ctx, "SELECT pg_sleep(0.001)")
								return err
							})
						}))
					}
				})
			}
			all.Wait()
			require.NoError(t, ctx.Err())
			t.Logf("%d goroutines with one connection: %d cycles in %v", goroutines, goroutines*cycles, time.Since(start).Round(time.Millisecond))
		})
	}
}

// A full lock table is an error of the server's, and not somebody's lock. What is held can be
// given back all the same, at once where that writes nothing.
func TestLoad_aFullLockTableIsAnErrorThatPasses(t *testing.T) { // G7, R2, C116
	t.Parallel()
	srv := startServer(t, "max_locks_per_transaction = 10", "max_connections = 10", "autovacuum = off")
	pool, filler := connect(t, srv.URL(), maxConns(1)), connect(t, srv.URL(), maxConns(1))
	lockers, holds := map[string]locker.Locker{}, map[string]locker.Lock{}
	modes := []string{"advisory", "row", "lease"}
	for _, mode := range modes {
		lockers[mode] = openOn(t, srv.URL(), mode, nil)
		holds[mode] = acquire(t, lockers[mode], "held")
	}
	waited := acquire(t, lockers["advisory"], "waited for")
	w := waitFor(t, openOn(t, srv.URL(), "advisory", nil), "waited for")
	awaitMarks(t, pool, Key("", "waited for"), 1)
	pid := holderPID(t, lockers["advisory"], "held")
	ours := func() int {
		return value[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid = $1", pid)
	}
	require.Equal(t, 2, ours())

	filled := 0
	fill := func() {
		var err error
		for ; err == nil; filled++ {
			_, err = filler.Exec(t.Context(), "SELECT pg_advisory_lock($1, 77)", filled)
		}
		require.True(t, hasCode(err, "53200"), err)
	}
	for _, mode := range modes {
		// Others may have given room back just now: then it is filled again.
		refused := false
		for i := 0; i < 50 && !refused; i++ {
			fill()
			k, err := lockers[mode].TryAcquire(t.Context(), fmt.Sprint("another", i))
			if err == nil {
				require.NoError(t, k.Release(t.Context()))
				continue
			}
			require.Nil(t, k)
			require.True(t, hasCode(err, "53200"), "%s: %v", mode, err)
			require.NotErrorIs(t, err, locker.ErrHeld)
			t.Logf("%s with %d locks of another session: %v", mode, filled, err)
			refused = true
		}
		require.True(t, refused, mode)
	}
	fill()
	start := time.Now()
	require.NoError(t, waited.Release(t.Context()))
	require.NoError(t, holds["advisory"].Release(t.Context()))
	require.NoError(t, holds["row"].Release(t.Context()))
	t.Logf("released into a full table in %v", time.Since(start).Round(100*time.Microsecond))
	// A lease's release takes a transaction, and so some room.
	leased := make(chan error, 1)
	go func() { leased <- holds["lease"].Release(context.Background()) }()
	exec(t, filler, "SELECT pg_advisory_unlock_all()")
	require.NoError(t, <-leased)
	w.lock(t) // it has seen errors meanwhile, and waits between its attempts
	require.Zero(t, ours(), "nothing is left of what failed")
	require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid), "the session lives")
	for mode, l := range lockers {
		require.NoError(t, acquire(t, l, "another").Release(t.Context()), mode)
	}
}

// Who waits by default has no transaction open: other sessions' waits are not longer for it.
// Who waits on the server has, and says so.
func TestLoad_createIndexConcurrentlyRunsBesideWaiters(t *testing.T) { // C65
	t.Parallel()
	for mode, waiters := range map[string]int{"advisory": 50, "lease": 50, blockedMode: 5} {
		t.Run(nameOfMode(mode), func(t *testing.T) {
			t.Parallel()
			database := newDatabase(t)
			pool := connect(t, database)
			exec(t, pool, "CREATE TABLE indexed AS SELECT n FROM generate_series(1, 1000) AS n")
			holder, l := openOn(t, database, mode, nil), openOn(t, database, mode, nil)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var all sync.WaitGroup
			for i := range waiters {
				key := fmt.Sprint(i)
				acquire(t, holder, key)
				all.Go(func() {
					_, err := l.Acquire(ctx, key)
					assert.ErrorIs(t, err, locker.ErrHeld)
				})
			}
			switch mode {
			case blockedMode:
				awaitBlocked(t, pool, waiters)
			default:
				require.Eventually(t, func() bool {
					return value[int](t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2
						AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == waiters
				}, soon, time.Millisecond)
			}
			start := time.Now()
			built := make(chan error, 1)
			go func() {
				_, err := pool.Exec(context.WithoutCancel(ctx), "CREATE INDEX CONCURRENTLY ON indexed (n)")
				built <- err
			}()
			if mode == blockedMode {
				require.Eventually(t, func() bool {
					return value[int](t, pool, `SELECT count(*) FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for%'`) == 1
				}, soon, time.Millisecond)
				require.Empty(t, built)
				t.Logf("CREATE INDEX CONCURRENTLY waits for %d waiters", waiters)
				stop()
				all.Wait()
			}
			select {
			case err := <-built:
				require.NoError(t, err)
			case <-time.After(soon):
				t.Fatal("CREATE INDEX CONCURRENTLY waits for waiters")
			}
			if mode != blockedMode {
				require.NoError(t, ctx.Err())
				t.Logf("CREATE INDEX CONCURRENTLY beside %d waiters: %v", waiters, time.Since(start).Round(time.Millisecond))
			}
			stop()
			all.Wait()
		})
	}
}
