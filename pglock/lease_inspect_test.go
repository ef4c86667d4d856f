package pglock

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestLease_forceReleaseComparesTheHolder(t *testing.T) {
	b := newLease(t)
	ctx := t.Context()
	req := request("k", time.Minute)
	req.Label = "a label"
	g := take(t, b, req)
	for _, wrong := range []string{"", req.Owner, "x"} {
		ok, err := b.ForceRelease(ctx, "k", wrong)
		require.NoError(t, err)
		require.False(t, ok, wrong)
	}
	ok, err := b.ForceRelease(ctx, "k", req.Holder())
	require.NoError(t, err)
	require.True(t, ok)
	_, err = g.Renew(ctx, time.Minute)
	requireLost(t, err, locker.ReasonExpired)
	next := take(t, b, request("k", time.Minute))
	require.Greater(t, next.Token(), g.Token())
}

// It takes no connection while it yields: this pool has one.
func TestLease_listGoesPageByPage(t *testing.T) {
	b := leaseOn(t, connect(t, newDatabase(t), maxConns(1)))
	const n = 2*page + 1
	exec(t, b.pool, `INSERT INTO locker_lease SELECT to_char(i, '00000'), 'o', i, clock_timestamp() + interval '1 min' FROM generate_series(1, $1::int) AS i`, n)
	exec(t, b.pool, "INSERT INTO locker_lease SELECT 'free' || i, NULL, i, 'infinity' FROM generate_series(1, 2000) AS i")
	exec(t, b.pool, "INSERT INTO locker_lease VALUES ('over', 'o', 1, clock_timestamp()), ('endless', 'o', 7, 'infinity')")
	var keys []string
	require.NoError(t, b.List(t.Context(), func(key string, h locker.Holding) bool {
		if len(keys)%page == 0 {
			requireFree(t, b, "another")
		}
		keys = append(keys, key)
		require.Equal(t, "o", h.Holder)
		if key == "endless" {
			require.Equal(t, locker.Holding{Holder: "o", Token: 7}, h)
		}
		return true
	}))
	require.Len(t, keys, n+1)
	require.True(t, slices.IsSorted(keys))
	calls := 0
	require.NoError(t, b.List(t.Context(), func(string, locker.Holding) bool { calls++; return false }))
	require.Equal(t, 1, calls)
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, b.List(ctx, func(string, locker.Holding) bool { cancel(); return true }), context.Canceled)
}
