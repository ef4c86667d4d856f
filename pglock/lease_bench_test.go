package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// What a program would write by hand: an upsert and an update, in pgx's default mode,
// which prepares them. Neither tells who holds a key, nor wakes anybody.
const (
	bareAcquire = `INSERT INTO locker_lease AS t (key, holder, token, expires_at)
VALUES ($1, $2, 1, now() + $3 * interval '1 microsecond')
ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, token = t.token + 1, expires_at = excluded.expires_at
WHERE t.expires_at < now() RETURNING token`
	bareRelease = `UPDATE locker_lease SET expires_at = '-infinity' WHERE key = $1 AND holder = $2 AND token = $3`
)

func BenchmarkLease(b *testing.B) {
	for _, fsync := range []string{"off", "on"} {
		srv := startServer(b, "synchronous_commit = "+fsync)
		pool := connect(b, srv.URL())
		lease := leaseOn(b, pool)
		ctx := context.Background()
		b.Run("synchronous_commit="+fsync, func(b *testing.B) {
			for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
				b.Run("bare/"+mode.String(), func(b *testing.B) { benchmarkBare(ctx, b, pool, mode) })
			}
			b.Run("lease/cache statement", func(b *testing.B) { benchmarkPrepared(ctx, b, lease) })
			b.Run("lease", func(b *testing.B) {
				for b.Loop() {
					require.NoError(b, take(b, lease, request("lease", time.Minute)).Release(ctx))
				}
			})
			held := take(b, lease, request("held", time.Minute))
			b.Run("refused", func(b *testing.B) {
				for b.Loop() {
					_, _ = lease.TryAcquire(ctx, request("held", time.Minute))
				}
			})
			require.NoError(b, held.Release(ctx))
		})
	}
}

func benchmarkBare(ctx context.Context, b *testing.B, pool *pgxpool.Pool, mode pgx.QueryExecMode) {
	for b.Loop() {
		owner := uuid.NewString()
		var token int64
		require.NoError(b, pool.QueryRow(ctx, bareAcquire, mode, "bare", owner, int64(60e6)).Scan(&token))
		_, err := pool.Exec(ctx, bareRelease, mode, "bare", owner, token)
		require.NoError(b, err)
	}
}

// benchmarkPrepared is what the statements would cost if they were prepared, which they
// cannot be behind every PgBouncer.
func benchmarkPrepared(ctx context.Context, b *testing.B, lease *leaseBackend) {
	class, object := waitMark(Key(lease.namespace, "prepared"))
	for b.Loop() {
		owner := uuid.NewString()
		rows, _ := lease.pool.Query(ctx, lease.acquireSQL, "prepared", owner, int64(60e6))
		got, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[acquired])
		require.NoError(b, err)
		_, err = lease.pool.Exec(ctx, lease.releaseSQL, "prepared", owner, *got.Token, class, object, notifyChannel, "")
		require.NoError(b, err)
	}
}
