package etcdlock

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// leaseOf is the lease that a lock stands on.
func leaseOf(k locker.Lock) *lease { return locker.GrantOf(k).(*grant).l }

func TestLoss_aRevokedLeaseIsToldByPush(t *testing.T) { // H5
	c := connect(t, startServer(t).Addr())
	l := lockerOn(t, c, locker.Config{TTL: time.Hour})
	var told []time.Duration
	for range 20 {
		k, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		other, err := l.Acquire(t.Context(), "other")
		require.NoError(t, err)
		start := time.Now()
		_, err = c.Revoke(t.Context(), leaseOf(k).id)
		require.NoError(t, err)
		<-k.Done()
		<-other.Done()
		told = append(told, time.Since(start))
		requireLost(t, k.Err(), locker.ReasonSession)
		requireLost(t, k.Release(t.Context()), locker.ReasonSession)
		requireLost(t, other.Release(t.Context()), locker.ReasonSession)
	}
	t.Logf("told %v .. %v after the request to revoke", slices.Min(told), slices.Max(told))
}

// A lock on a lease that has been standing for some time lives no longer than the lease.
func TestLoss_aLockTakenLateKnowsHowLongItsLeaseHas(t *testing.T) { // H2, C120
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	const ttl = 10 * time.Second
	first := take(t, b, request("first", ttl))
	for range 20 {
		g := take(t, b, request(uuid.NewString(), ttl))
		seen, err := c.TimeToLive(t.Context(), g.l.id)
		require.NoError(t, err)
		left := time.Until(g.Lease().Since.Add(g.Lease().TTL))
		require.LessOrEqual(t, left, time.Duration(seen.TTL+1)*time.Second)
		require.NoError(t, g.Release(t.Context()))
		time.Sleep(150 * time.Millisecond) // the age is what is looked at
	}
	require.NoError(t, first.Release(t.Context()))
}

// An old lease is refreshed before a lock is put on it.
func TestLoss_aLockIsWorthMostOfItsTTL(t *testing.T) { // K2
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	g := take(t, b, request("k", 3*time.Second))
	l := g.l
	require.NoError(t, g.Release(t.Context()))
	l.mu.Lock()
	l.base = l.base.Add(-2 * time.Second)
	l.mu.Unlock()
	g = take(t, b, request("k", 3*time.Second))
	require.Same(t, l, g.l)
	require.Less(t, time.Since(g.Lease().Since), time.Second)
	require.NoError(t, g.Release(t.Context()))
}

// With the usual timing of elections a server gives no lease of a second.
func TestLoss_aLeaseMayBeLongerThanAskedFor(t *testing.T) { // K2, C120
	t.Parallel()
	srv, err := testenv.StartEtcd(t.Context(), nil)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	l := lockerOn(t, connect(t, srv.Addr()), locker.Config{TTL: time.Second})
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, k.TTL())
	first := k.Deadline()
	require.Eventually(t, func() bool { return k.Deadline().Sub(first) > time.Second }, soon, time.Millisecond)
	require.NoError(t, k.Release(t.Context()))
	again, err := l.Acquire(t.Context(), "k", locker.WithTTL(2*time.Second))
	require.NoError(t, err)
	require.NoError(t, again.Release(t.Context()))
}

// The lease may have gone without anybody's having heard of it.
func TestLoss_aLeaseThatIsGoneIsReplaced(t *testing.T) { // G4
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	g := take(t, b, request("k", 10*time.Second))
	gone := g.l
	gone.cancel() // nobody watches
	_, err := c.Revoke(t.Context(), gone.id)
	require.NoError(t, err)
	again := take(t, b, request("k", 10*time.Second))
	require.NotEqual(t, gone.id, again.l.id)
	require.Greater(t, again.Token(), g.Token())
	requireLost(t, g.Release(t.Context()), locker.ReasonSession)
	require.NoError(t, again.Release(t.Context()))
}

func TestLoss_anEntryThatIsRemovedIsFoundByTheNextRenewal(t *testing.T) { // H3, C33
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	l := lockerOn(t, c, locker.Config{TTL: 2 * time.Second})
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	kept, err := l.Acquire(t.Context(), "kept")
	require.NoError(t, err)
	_, err = c.Delete(t.Context(), Name(DefaultPrefix, "k")+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	select {
	case <-k.Done():
	case <-time.After(soon):
	}
	requireLost(t, k.Err(), locker.ReasonExpired)
	require.NoError(t, kept.Err())
	require.NoError(t, kept.Release(t.Context()))
}

// What nobody waits for has no answer; what stands on the lease is swept at its next refresh.
func TestLease_whatArrivesLateIsSwept(t *testing.T) { // R4, G4
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	g := take(t, b, request("k", 10*time.Second))
	g.l.resign()
	late := b.entry(g.l, request("late", 10*time.Second), nil)
	_, err := c.Put(t.Context(), late.name, late.holder, clientv3.WithLease(g.l.id))
	require.NoError(t, err)
	require.NoError(t, g.l.keepAlive(t.Context()))
	require.Eventually(t, func() bool { return len(entries(t, c)) == 1 }, soon, time.Millisecond)
	next := take(t, b, request("next", 10*time.Second))
	require.NotSame(t, g.l, next.l, "it takes no new locks")
	require.NoError(t, g.Release(t.Context()))
	require.Eventually(t, func() bool { return len(leases(t, c)) == 1 }, soon, time.Millisecond, "and ends with its last one")
	require.NoError(t, next.Release(t.Context()))
}

func TestLease_areOfFourTTLsAtMost(t *testing.T) { // R4
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	var held []*grant
	for i := range maxTTLs {
		held = append(held, take(t, b, request("k"+string(rune('0'+i)), time.Duration(10+i)*time.Second)))
	}
	_, err := b.TryAcquire(t.Context(), request("more", time.Minute))
	require.ErrorIs(t, err, locker.ErrUnsupported)
	require.NoError(t, held[0].Release(t.Context()))
	more := take(t, b, request("more", time.Minute))
	require.Eventually(t, func() bool { return len(leases(t, c)) == maxTTLs }, soon, time.Millisecond, "one made room")
	for _, g := range append(held[1:], more) {
		require.NoError(t, g.Release(t.Context()))
	}
}

func TestBackend_closeLeavesNoLease(t *testing.T) { // House, C118
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b, err := newBackend(c, &Config{Leases: 3})
	require.NoError(t, err)
	for range 9 {
		take(t, b, request(uuid.NewString(), time.Hour))
	}
	require.Len(t, leases(t, c), 3)
	require.NoError(t, b.Close(context.Background()))
	require.Empty(t, leases(t, c))
	require.Empty(t, entries(t, c))
	_, err = b.TryAcquire(t.Context(), request("k", time.Hour))
	require.ErrorIs(t, err, locker.ErrClosed)
}
