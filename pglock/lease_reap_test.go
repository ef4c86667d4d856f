package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLease_rowsThatNobodyNeedsAreReaped(t *testing.T) { // C127, G3
	b := newLease(t)
	const old = "(extract(epoch FROM clock_timestamp() - interval '25 h') * 1000000)::bigint"
	exec(t, b.pool, "INSERT INTO locker_lease SELECT 'free' || i, NULL, "+old+", '-infinity' FROM generate_series(1, 3000) AS i")
	exec(t, b.pool, "INSERT INTO locker_lease SELECT 'over' || i, 'x', "+old+", clock_timestamp() FROM generate_series(1, 3000) AS i")
	exec(t, b.pool, "INSERT INTO locker_lease VALUES ('held', 'x', "+old+", 'infinity'), ('locked', NULL, "+old+", '-infinity')")
	requireFree(t, b, "young")
	tx := begin(t, b.pool)
	_, err := tx.Exec(t.Context(), "SELECT FROM locker_lease WHERE key = 'locked' FOR UPDATE")
	require.NoError(t, err)

	first := b.reaper.reap(0.5, 1)
	require.Positive(t, first)
	require.Less(t, first, int64(200), "a small part of the table")
	require.Equal(t, int64(6000)-first, b.reaper.reap(0, 1000))
	require.Equal(t, "held,locked,young", value[string](t, b.pool, "SELECT string_agg(key, ',' ORDER BY key) FROM locker_lease"))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, int64(1), b.reaper.reap(0, 1000))

	before := uint64(time.Now().Add(-time.Minute).UnixMicro())
	require.Greater(t, take(t, b, request("free1", time.Minute)).Token(), before, "tokens rise without the row")
}

// A counter that is ahead of the clock is what makes the next token larger.
func TestLease_aRowWhoseTokenIsNotOldStays(t *testing.T) {
	b := newLease(t)
	exec(t, b.pool, "INSERT INTO locker_lease VALUES ('k', NULL, (extract(epoch FROM clock_timestamp() + interval '1 h') * 1000000)::bigint, '-infinity')")
	require.Zero(t, b.reaper.reap(0, 1000))
}

func TestLease_reapingIsPartOfReleasesNowAndThen(t *testing.T) {
	b := newLease(t)
	exec(t, b.pool, "INSERT INTO locker_lease VALUES ('old', NULL, 1, '-infinity')")
	rows := func() int { return value[int](t, b.pool, "SELECT count(*) FROM locker_lease WHERE key = 'old'") }
	requireFree(t, b, "k")
	b.reaper.running.Wait()
	require.Equal(t, 1, rows(), "not due")
	b.reaper.mu.Lock()
	b.reaper.next = time.Now()
	b.reaper.mu.Unlock()
	requireFree(t, b, "k")
	b.reaper.running.Wait()
	require.Zero(t, rows())
	require.True(t, b.reaper.next.After(time.Now()), "due again, but later")

	require.NoError(t, b.Close(context.Background()))
	requireFree(t, b, "k")
	require.Zero(t, b.reaper.next, "none after Close")
}
