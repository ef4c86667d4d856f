package pglock

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
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

// The Locker makes a fresh owner for every attempt: the same one means that the command
// was sent before.
func TestLease_aCommandThatIsSentTwiceIsOneGrant(t *testing.T) { // G4
	b := newLease(t)
	req := request("k", time.Minute)
	first := take(t, b, req)
	exec(t, b.pool, "UPDATE locker_lease SET expires_at = clock_timestamp() + interval '1 s'")
	again := take(t, b, req)
	require.Equal(t, first.Token(), again.Token())
	require.Greater(t, requireHeld(t, b, "k").Remaining, 30*time.Second, "its life is counted from the second one")

	exec(t, b.pool, "UPDATE locker_lease SET expires_at = clock_timestamp()")
	require.Greater(t, take(t, b, req).Token(), first.Token(), "a lease that is over was anybody's")
}

func TestLease_aRefusalOnlyReads(t *testing.T) { // G5
	b := newLease(t)
	g := take(t, b, request("k", time.Minute))
	const next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	before := value[int64](t, b.pool, next)
	const refusals = 200
	for range refusals {
		requireHeld(t, b, "k")
	}
	require.Less(t, value[int64](t, b.pool, next)-before, int64(refusals/4), "transaction ids, also for the server's own work")
	require.Equal(t, "0", value[string](t, b.pool, "SELECT xmax::text FROM locker_lease"), "a row lock")
	require.NoError(t, g.Release(t.Context()))
}

func TestLease_goesToOneOfManyAtOnce(t *testing.T) { // G1, G5
	b := newLease(t)
	for range 20 {
		var granted atomic.Pointer[leaseGrant]
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				g, err := b.TryAcquire(context.Background(), request("k", time.Minute))
				if err == nil {
					assert.True(t, granted.CompareAndSwap(nil, g.(*leaseGrant)), "a second grant")
					return
				}
				assert.Nil(t, g)
				assert.ErrorIs(t, err, locker.ErrHeld)
			})
		}
		all.Wait()
		require.NoError(t, granted.Load().Release(t.Context()))
	}
}

// The snapshot of the statement does not show who was quicker.
func TestLease_aRaceThatIsLostIsHeldByNobodyKnown(t *testing.T) { // G7
	b := newLease(t)
	tx := begin(t, b.pool)
	_, err := tx.Exec(t.Context(), "INSERT INTO locker_lease VALUES ('k', 'somebody', 1, clock_timestamp() + interval '1 min')")
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := b.TryAcquire(context.Background(), request("k", time.Minute))
		done <- err
	}()
	blocked(t, b.pool)
	require.NoError(t, tx.Commit(t.Context()))
	var held *locker.HeldError
	require.ErrorAs(t, <-done, &held)
	require.Equal(t, locker.HeldError{Key: "k"}, *held)
	require.Equal(t, "somebody", requireHeld(t, b, "k").Holder)
}

func TestLease_countsFromWhenTheRowWasHad(t *testing.T) {
	b := newLease(t)
	requireFree(t, b, "k")
	tx := begin(t, b.pool)
	_, err := tx.Exec(t.Context(), "SELECT FROM locker_lease FOR UPDATE")
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := b.TryAcquire(context.Background(), request("k", time.Hour))
		done <- err
	}()
	blocked(t, b.pool)
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep(0.3)")
	require.NoError(t, err)
	unlocked := value[time.Time](t, b.pool, "SELECT clock_timestamp()")
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	require.True(t, value[bool](t, b.pool, "SELECT expires_at >= $1::timestamptz + interval '1 hour' FROM locker_lease", unlocked))
	require.True(t, value[bool](t, b.pool, "SELECT token >= extract(epoch FROM $1::timestamptz) * 1000000 FROM locker_lease", unlocked))
}

// The time is the database's, in whole.
func TestLease_lastsForItsTTLOnTheServersClock(t *testing.T) { // C69, C110
	b := newLease(t)
	for _, ttl := range []time.Duration{time.Second, 1500 * time.Microsecond, 2500 * time.Millisecond, 90 * time.Second, locker.MaxTTL} {
		before := value[time.Time](t, b.pool, "SELECT clock_timestamp()")
		g := take(t, b, request("k", ttl))
		expires := value[time.Time](t, b.pool, "SELECT expires_at FROM locker_lease")
		after := value[time.Time](t, b.pool, "SELECT clock_timestamp()")
		require.Equal(t, ttl, g.Lease().TTL)
		require.False(t, expires.Before(before.Add(ttl)), ttl)
		require.False(t, expires.After(after.Add(ttl)), ttl)
		_ = g.Release(context.Background()) // the shortest may be over
	}
	require.Equal(t, int64(2), micros(1001*time.Nanosecond), "K2: rounded up")
}

func TestLease_isTakenOverWhenItIsOver(t *testing.T) { // C113, G3
	b := newLease(t)
	g := take(t, b, request("k", time.Minute))
	exec(t, b.pool, "UPDATE locker_lease SET expires_at = clock_timestamp(), token = token + 10 * 1000000::bigint * 86400")
	ahead := value[int64](t, b.pool, "SELECT token FROM locker_lease")
	next := take(t, b, request("k", time.Minute))
	require.Equal(t, uint64(ahead+1), next.Token(), "C127: also when the clock is behind")
	requireLost(t, g.Release(t.Context()), locker.ReasonTaken)
}

// A dump with live leases in it does not lock anything for ever.
func TestLease_aCopyOfTheTableIsFreeWhenItsLeasesAreOver(t *testing.T) { // C113
	b, other := newLease(t), newLease(t)
	g := take(t, b, request("k", time.Second))
	rows, err := b.pool.Query(t.Context(), "SELECT key, holder, token, expires_at FROM locker_lease")
	require.NoError(t, err)
	copied, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	require.NoError(t, err)
	_, err = other.pool.CopyFrom(t.Context(), pgx.Identifier{"locker_lease"}, []string{"key", "holder", "token", "expires_at"}, pgx.CopyFromRows(copied))
	require.NoError(t, err)
	requireHeld(t, other, "k")
	l, err := locker.New(other, nil)
	require.NoError(t, err)
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.Greater(t, k.Token(), g.Token())
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, l.Close(t.Context()))
}

func TestLease_plainSQLTakesPart(t *testing.T) {
	b := newLease(t)
	set := func(holder, expires string) {
		exec(t, b.pool, "INSERT INTO locker_lease VALUES ('k', "+holder+", 1, "+expires+`)
			ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at`)
	}
	for _, free := range [][2]string{{"NULL", "'infinity'"}, {"''", "now() + interval '1 h'"}, {"'x'", "now()"}, {"'x'", "'-infinity'"}} {
		set(free[0], free[1])
		h, err := b.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, h)
		requireFree(t, b, "k")
	}
	set("'psql on host 7'", "'infinity'")
	require.Equal(t, locker.HeldError{Key: "k", Holder: "psql on host 7"}, *requireHeld(t, b, "k"), "without an end")
	set("'x'", "now() + interval '20 s'")
	require.InDelta(t, 20*time.Second, requireHeld(t, b, "k").Remaining, float64(soon))
}

func TestLease_keysAreExact(t *testing.T) { // K1, C74, C75, C76
	b := newLease(t)
	random := make([]byte, 256)
	for i := range random {
		random[i] = byte(rand.IntN(256))
	}
	long := hex.EncodeToString(random) // 512 bytes that do not compress well
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a\n", `a\`, "a%", "a_", "a'", `a"`, "a$1", "NULL", "\x01", "../", "é", "e\u0301", "\U0001F512", "\u00a0",
		long, long[:511] + "x", "{}a", "a:fence",
	}
	for _, key := range keys {
		take(t, b, request(key, time.Minute))
	}
	for _, key := range keys {
		requireHeld(t, b, key)
	}
	require.Equal(t, len(keys), value[int](t, b.pool, "SELECT count(*) FROM locker_lease"))
}

func TestLease_updatesWriteNoIndex(t *testing.T) {
	b := newLease(t)
	for i := range 500 {
		key := fmt.Sprint("k", i%10)
		g := take(t, b, request(key, time.Minute))
		_, err := g.Renew(t.Context(), time.Hour)
		require.NoError(t, err)
		require.NoError(t, g.Release(t.Context()))
	}
	exec(t, b.pool, "SELECT pg_stat_force_next_flush()")
	stat := func(column string) int64 {
		return value[int64](t, b.pool, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = 'locker_lease'")
	}
	require.Eventually(t, func() bool { return stat("n_tup_upd") >= 1400 }, soon, 10*time.Millisecond)
	require.GreaterOrEqual(t, stat("n_tup_hot_upd"), stat("n_tup_upd")*95/100)
}

// A cycle is two statements.
func TestLease_sendsOneStatementForEachCall(t *testing.T) {
	var sent atomic.Int64
	b := leaseOn(t, connect(t, newDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = counter{&sent} }))
	g := take(t, b, request("k", time.Minute))
	for _, step := range []struct {
		name string
		call func() error
		want int64
	}{
		{"refusal", func() error {
			requireHeld(t, b, "k")
			return nil
		}, 1},
		{"renewal", func() error { _, err := g.Renew(t.Context(), time.Minute); return err }, 1},
		{"extension", func() error { _, err := b.Extend(t.Context(), g, time.Minute); return err }, 1},
		{"release", func() error { return g.Release(t.Context()) }, 1},
		{"cycle", func() error { requireFree(t, b, "k"); return nil }, 2},
	} {
		before := sent.Load()
		require.NoError(t, step.call(), step.name)
		require.Equal(t, step.want, sent.Load()-before, step.name)
	}
}

// counter counts the statements of a pool.
type counter struct{ n *atomic.Int64 }

func (c counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestLease_modesThatItLacksAreUnsupported(t *testing.T) {
	b := newLease(t)
	for _, mode := range []locker.Mode{locker.ModeShared, locker.ModeLimited} {
		req := request("k", time.Minute)
		req.Mode = mode
		g, err := b.TryAcquire(t.Context(), req)
		require.Nil(t, g)
		require.ErrorIs(t, err, locker.ErrUnsupported)
	}
}
