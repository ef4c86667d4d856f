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

	"github.com/go-locker/locker/internal/testenv"
)

// prepared counts the statements on the table that a pool's one connection has prepared.
const prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%locker_lease%'"

func TestLease_preparesItsStatementsOnTheServerItself(t *testing.T) {
	pool := connect(t, newDatabase(t), maxConns(1))
	b := leaseOn(t, pool)
	requireFree(t, b, "k")
	requireFree(t, b, "k")
	require.Equal(t, 2, value[int](t, pool, prepared, pgx.QueryExecModeExec))
}

func TestLease_preparesNothingIfThePoolDoesNot(t *testing.T) {
	for name, set := range map[string]func(*pgx.ConnConfig){
		"by its mode":      func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec },
		"for lack of room": func(c *pgx.ConnConfig) { c.StatementCacheCapacity = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			pool := connect(t, newDatabase(t), maxConns(1), func(cfg *pgxpool.Config) { set(cfg.ConnConfig) })
			requireFree(t, leaseOn(t, pool), "k")
			require.Zero(t, value[int](t, pool, prepared, pgx.QueryExecModeExec))
		})
	}
}

// A hook of the pool, or another user of it, may empty its sessions at any time.
func TestLease_doesWithoutPreparedStatementsThatAreGone(t *testing.T) {
	pool := connect(t, newDatabase(t), maxConns(1))
	b := leaseOn(t, pool)
	requireFree(t, b, "k")
	g := take(t, b, request("k", time.Minute))
	exec(t, pool, "DEALLOCATE ALL", pgx.QueryExecModeExec)
	require.NoError(t, g.Release(t.Context()))
	requireFree(t, b, "k")
	require.Zero(t, value[int](t, pool, prepared, pgx.QueryExecModeExec))
}

func bouncerBefore(t *testing.T) (direct, through string) {
	t.Helper()
	srv := startServer(t)
	pb, err := testenv.StartPgBouncer(context.Background(), srv, &testenv.PgBouncerConfig{
		Mode: "transaction", PoolSize: 3,
	})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, pb.Stop()) })
	through, err = pb.Through(srv.URL())
	require.NoError(t, err)
	return srv.URL(), through
}

func TestLease_preparesNothingBehindAPooler(t *testing.T) {
	_, through := bouncerBefore(t)
	b := leaseOn(t, connect(t, through, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	}))
	require.Equal(t, pgx.QueryExecModeExec, b.mode())
	cyclesAtOnce(t, b)
}

// The address of a server may become that of a pooler.
func TestLease_doesWithoutPreparedStatementsWhenAPoolerComesInBetween(t *testing.T) {
	direct, through := bouncerBefore(t)
	b := leaseOn(t, connect(t, direct))
	require.Equal(t, pgx.QueryExecModeCacheStatement, b.mode())
	b.pool = connect(t, through)
	cyclesAtOnce(t, b)
}

// cyclesAtOnce has many goroutines take and release keys.
func cyclesAtOnce(t *testing.T, b *leaseBackend) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 20 {
				g, err := b.TryAcquire(context.Background(), request(fmt.Sprint(i), time.Minute))
				if assert.NoError(t, err) {
					assert.NoError(t, g.Release(context.Background()))
				}
			}
		})
	}
	wg.Wait()
}
