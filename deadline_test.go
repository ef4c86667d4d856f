package locker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestDeadline_isCountedFromBeforeTheRenewalWasSent(t *testing.T) { // H2
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		var sent time.Time
		f.set(only("renew", func(context.Context, string) error {
			sent = time.Now()
			return nil
		}), only("renew", takes(300*time.Millisecond)))
		time.Sleep(ttl/3 + 400*time.Millisecond)
		synctest.Wait()
		require.Equal(t, sent.Add(ttl-150*time.Millisecond), k.Deadline())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestDeadline_isCountedFromBeforeTheExtendWasSent(t *testing.T) { // H2
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		f.set(nil, only("extend", takes(time.Second)))
		sent := time.Now()
		require.NoError(t, k.Extend(t.Context(), 10*time.Second))
		require.Equal(t, sent.Add(10*time.Second-250*time.Millisecond), k.Deadline())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestDeadline_isNotBroughtNearerByARenewal(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		f.renewed = func(locker.Lease) locker.Lease { return locker.Lease{TTL: ttl / 3} }
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		before := k.Deadline()
		time.Sleep(ttl/3 + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, f.count("renew"))
		require.Equal(t, before, k.Deadline())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestDeadline_ofARenewalWhoseAnswerNamesNoTTLIsAsRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		f.renewed = func(locker.Lease) locker.Lease { return locker.Lease{} }
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		start := time.Now()
		time.Sleep(ttl/3 + time.Millisecond)
		synctest.Wait()
		require.Equal(t, start.Add(ttl/3+ttl-150*time.Millisecond), k.Deadline())
		require.Equal(t, ttl, k.TTL())
		time.Sleep(10 * ttl)
		require.NoError(t, k.Err())
		require.LessOrEqual(t, f.count("renew"), 40)
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestDeadline_isCountedFromWhereTheStoreCounts(t *testing.T) { // H2: a lease that others refresh
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		var since time.Time
		f.renewed = func(l locker.Lease) locker.Lease {
			since = time.Now().Add(-200 * time.Millisecond)
			return locker.Lease{TTL: l.TTL, Since: since}
		}
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		time.Sleep(ttl/3 + time.Millisecond)
		synctest.Wait()
		require.Equal(t, since.Add(ttl-150*time.Millisecond), k.Deadline())
		require.NoError(t, k.Release(t.Context()))
	})
}
