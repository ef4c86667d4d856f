package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// leaseOn makes a backend, and the table if need be. The test's end closes it.
func leaseOn(t testing.TB, pool *pgxpool.Pool) *leaseBackend {
	t.Helper()
	b, err := newLeaseBackend(context.Background(), pool, &LeaseConfig{Create: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

func newLease(t testing.TB) *leaseBackend {
	t.Helper()
	return leaseOn(t, connect(t, newDatabase(t)))
}

func TestLease_isTakenShownRenewedAndReleased(t *testing.T) {
	ctx := t.Context()
	b := newLease(t)
	req := request("k", time.Minute)
	req.Label = "nightly"
	before := time.Now().UnixMicro()
	g := take(t, b, req)
	require.GreaterOrEqual(t, g.Token(), uint64(before))
	require.Equal(t, time.Minute, g.Lease().TTL)

	held := requireHeld(t, b, "k")
	require.Equal(t, req.Holder(), held.Holder)
	require.InDelta(t, time.Minute, held.Remaining, float64(soon))

	h, err := b.Inspect(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, g.Token(), h.Token)
	require.Equal(t, req.Holder(), h.Holder)

	lease, err := g.Renew(ctx, time.Second)
	require.NoError(t, err)
	require.Equal(t, time.Second, lease.TTL)
	require.InDelta(t, time.Minute, requireHeld(t, b, "k").Remaining, float64(soon), "H1: a renewal never shortens")
	_, err = b.Extend(ctx, g, 10*time.Second)
	require.NoError(t, err)
	require.InDelta(t, 10*time.Second, requireHeld(t, b, "k").Remaining, float64(soon))

	require.NoError(t, g.Release(ctx))
	requireLost(t, g.Release(ctx), locker.ReasonExpired)
	next := take(t, b, request("k", time.Minute))
	require.Greater(t, next.Token(), g.Token())
	requireLost(t, g.Release(ctx), locker.ReasonTaken)
	_, err = g.Renew(ctx, time.Minute)
	requireLost(t, err, locker.ReasonTaken)
}
