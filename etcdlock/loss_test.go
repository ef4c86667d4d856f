package etcdlock

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
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
