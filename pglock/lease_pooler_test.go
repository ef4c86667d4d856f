package pglock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// No statement is prepared, nothing is left in a session, and no transaction is begun: the
// server's connections may change behind every statement.
func TestLease_worksThroughPgBouncerInEveryMode(t *testing.T) { // C99
	srv := startServer(t)
	const clients, cycles = 20, 100
	for _, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			size := 3
			if mode == "session" {
				size = clients + 1
			}
			bouncer, err := testenv.StartPgBouncer(t.Context(), srv, &testenv.PgBouncerConfig{Mode: mode, PoolSize: size})
			started(t, err)
			defer func() { require.NoError(t, bouncer.Stop()) }()
			var all sync.WaitGroup
			var grants atomic.Int64
			for i := range clients {
				b := leaseOn(t, connect(t, bouncer.URL(), maxConns(1)))
				all.Go(func() {
					for n := range cycles {
						key := fmt.Sprint("own", i)
						if n%4 == 0 {
							key = "common"
						}
						err := cycle(b, key, n%10 == 0)
						if err == nil {
							grants.Add(1)
						} else if key != "common" || !errors.Is(err, locker.ErrHeld) {
							assert.NoError(t, err) //nolint:testifylint // on a goroutine
						}
					}
					b.reaper.reap(0, 1)
				})
			}
			all.Wait()
			require.GreaterOrEqual(t, grants.Load(), int64(clients*cycles*3/4))
			direct := connect(t, srv.URL())
			require.Zero(t, value[int](t, direct, "SELECT count(*) FROM locker_lease WHERE holder <> ''"))
		})
	}
}

// cycle takes a key, gives it back, and does all else with it in between if it is to.
func cycle(b *leaseBackend, key string, all bool) error {
	ctx := context.Background()
	g, err := b.TryAcquire(ctx, request(key, time.Minute))
	if err != nil {
		return err
	}
	var errs []error
	if all {
		_, renewed := g.Renew(ctx, time.Minute)
		_, extended := b.Extend(ctx, g, time.Minute)
		errs = append(errs, renewed, extended, b.List(ctx, func(string, locker.Holding) bool { return true }))
		b.RenewAll(ctx, []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
			if !errors.Is(err, errBusy) { // by one who has just lost the race for a common key
				errs = append(errs, err)
			}
		})
	}
	return errors.Join(append(errs, g.Release(ctx))...)
}

// The mode that other libraries recommend for a PgBouncer makes no difference.
func TestLease_doesNotDependOnThePoolsModeOfQueries(t *testing.T) {
	database := newDatabase(t)
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		pool := connect(t, withParam(t, database, "default_query_exec_mode", mode))
		b := leaseOn(t, pool)
		g := take(t, b, request("k", time.Minute))
		requireHeld(t, b, "k")
		require.NoError(t, g.Release(t.Context()))
		if mode != "cache_statement" { // which may prepare, where it leads to the server itself
			require.Zero(t, value[int](t, pool, "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%locker_lease%' AND statement NOT LIKE '%pg_prepared_statements%'"))
		}
	}
}
