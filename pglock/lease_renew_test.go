package pglock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestLease_renewalNeverBringsALeaseBack(t *testing.T) { // H1, C28, C29
	for _, tc := range []struct {
		name, sql string
		reason    locker.Reason
	}{
		{"gone", "DELETE FROM locker_lease", locker.ReasonExpired},
		{"over", "UPDATE locker_lease SET expires_at = clock_timestamp()", locker.ReasonExpired},
		{"freed", "UPDATE locker_lease SET holder = NULL", locker.ReasonExpired},
		{"emptied", "UPDATE locker_lease SET holder = ''", locker.ReasonExpired},
		{"taken", "UPDATE locker_lease SET holder = 'x'", locker.ReasonTaken},
		{"taken, and over", "UPDATE locker_lease SET holder = 'x', expires_at = clock_timestamp()", locker.ReasonTaken},
		{"another grant", "UPDATE locker_lease SET token = token + 1", locker.ReasonExpired},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newLease(t)
			g := take(t, b, request("k", time.Minute))
			exec(t, b.pool, tc.sql)
			const look = "SELECT coalesce((SELECT t::text FROM locker_lease AS t), '')"
			before := value[string](t, b.pool, look)
			_, err := g.Renew(t.Context(), time.Minute)
			requireLost(t, err, tc.reason)
			_, err = b.Extend(t.Context(), g, time.Minute)
			requireLost(t, err, tc.reason)
			b.RenewAll(t.Context(), []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
				requireLost(t, err, tc.reason)
			})
			requireLost(t, g.Release(t.Context()), tc.reason)
			require.Equal(t, before, value[string](t, b.pool, look))
		})
	}
}

// The row of a lease that is over may be locked by the one who takes it.
func TestLease_renewalLooksAtTheClockWhenItHasTheRow(t *testing.T) {
	b := newLease(t)
	g := take(t, b, request("k", 300*time.Millisecond))
	tx := begin(t, b.pool)
	_, err := tx.Exec(t.Context(), "SELECT FROM locker_lease FOR UPDATE")
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := g.Renew(context.Background(), time.Minute)
		done <- err
	}()
	blocked(t, b.pool)
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep(extract(epoch FROM expires_at - clock_timestamp())) FROM locker_lease")
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	requireLost(t, <-done, locker.ReasonExpired)
}

func TestLease_aBatchAnswersForEach(t *testing.T) {
	b := newLease(t)
	ctx := t.Context()
	const n = 2*maxBatch + 10
	exec(t, b.pool, `INSERT INTO locker_lease SELECT 'k' || i, 'o' || i, token, clock_timestamp() + interval '1 min' FROM generate_series(1, $1::int) AS i, LATERAL (SELECT i AS token) AS l`, n)
	var renewals []locker.Renewal
	for i := n; i > 0; i-- {
		g := &leaseGrant{b: b, key: fmt.Sprint("k", i), holder: fmt.Sprint("o", i), token: int64(i)}
		renewals = append(renewals, locker.Renewal{Grant: g, TTL: time.Duration(i) * time.Minute})
	}
	exec(t, b.pool, "DELETE FROM locker_lease WHERE token = 7")
	exec(t, b.pool, "UPDATE locker_lease SET holder = 'x' WHERE token = 1500")
	renewals[5].Grant = nil
	type reply struct {
		lease locker.Lease
		err   error
	}
	answers := make(map[int]reply)
	start := time.Now()
	b.RenewAll(ctx, renewals, func(i int, l locker.Lease, err error) {
		require.NotContains(t, answers, i, "answered twice")
		answers[i] = reply{l, err}
	})
	t.Log(n, "renewals took", time.Since(start))
	require.Len(t, answers, n)
	for i, a := range answers {
		switch n - i {
		case 7:
			requireLost(t, a.err, locker.ReasonExpired)
		case 1500:
			requireLost(t, a.err, locker.ReasonTaken)
		case n - 5:
			require.ErrorIs(t, a.err, locker.ErrInvalid)
		default:
			require.NoError(t, a.err)
			require.Equal(t, renewals[i].TTL, a.lease.TTL)
		}
	}
	require.Equal(t, n-3, value[int](t, b.pool, `SELECT count(*) FROM locker_lease WHERE token NOT IN (1500, $1::int)
		AND expires_at BETWEEN clock_timestamp() + (token - 1) * interval '1 min' AND clock_timestamp() + token * interval '1 min'`, n-5))
}

// A psql that has a row locked, and whose user is at lunch, costs that row's lock alone.
func TestLease_aLockedRowHoldsUpNoOtherRenewal(t *testing.T) {
	b := newLease(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var renewals []locker.Renewal
	for _, key := range []string{"a", "b", "c"} {
		renewals = append(renewals, locker.Renewal{Grant: take(t, b, request(key, time.Minute)), TTL: time.Hour})
	}
	tx := begin(t, b.pool)
	_, err := tx.Exec(ctx, "SELECT FROM locker_lease WHERE key = 'b' FOR UPDATE")
	require.NoError(t, err)
	errs := make([]error, 3)
	b.RenewAll(ctx, renewals, func(i int, _ locker.Lease, err error) { errs[i] = err })
	require.NoError(t, errs[0])
	require.NoError(t, errs[2])
	require.ErrorIs(t, errs[1], errBusy, "to be tried again: H3")
	require.NoError(t, tx.Rollback(ctx))
	b.RenewAll(ctx, renewals, func(i int, _ locker.Lease, err error) { errs[i] = err })
	require.NoError(t, errs[1])
}

// Also extensions, which wait for rows.
func TestLease_renewalsInAnyOrderDoNotBlockEachOther(t *testing.T) {
	b := newLease(t)
	var there, back []locker.Renewal
	for i := range 50 {
		r := locker.Renewal{Grant: take(t, b, request(fmt.Sprint(i), time.Minute)), TTL: time.Minute}
		there, back = append(there, r), append([]locker.Renewal{r}, back...)
	}
	var both sync.WaitGroup
	for _, renewals := range [][]locker.Renewal{there, back} {
		both.Go(func() {
			for range 30 {
				b.setAll(context.Background(), b.renewSQL, renewals, true, func(i int, _ locker.Lease, err error) {
					assert.NoError(t, err)
				})
			}
		})
	}
	both.Wait()
}
