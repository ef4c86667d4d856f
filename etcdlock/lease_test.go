package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// An old lease is refreshed before a lock is put on it.
func TestLease_isRefreshedBeforeALockIsPutOnIt(t *testing.T) { // K2
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	g := take(t, b, request("k", 3*time.Second))
	l := g.l
	require.NoError(t, g.Release(t.Context()))
	l.mu.Lock()
	l.base.at = l.base.at.Add(-2 * time.Second)
	l.mu.Unlock()
	g = take(t, b, request("k", 3*time.Second))
	require.Same(t, l, g.l)
	require.Less(t, time.Since(g.Lease().Since), time.Second)
	require.NoError(t, g.Release(t.Context()))
}

// With the usual timing of elections a server gives no lease of a second.
func TestLease_mayBeLongerThanAskedFor(t *testing.T) { // K2, C120
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
func TestLease_thatIsGoneIsReplaced(t *testing.T) { // G4
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

func TestLease_atMostFourTTLsAtATime(t *testing.T) { // R4
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
	for len(leases(t, c)) < 3 { // each key has one of them, by chance
		take(t, b, request(uuid.NewString(), time.Hour))
	}
	require.NoError(t, b.Close(context.Background()))
	require.Empty(t, leases(t, c))
	require.Empty(t, entries(t, c))
	_, err = b.TryAcquire(t.Context(), request("k", time.Hour))
	require.ErrorIs(t, err, locker.ErrClosed)
}

// A lease whose grant had no answer is ended all the same, as is one that nobody waited for.
func TestLease_isNotLeftBehind(t *testing.T) { // House, G4
	t.Parallel()
	var m meddler
	c := m.connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	var made int
	m.with("LeaseGrant", func(send func() error) error {
		err := lost(send)
		made = len(leases(t, c))
		return err
	})
	_, err := b.TryAcquire(t.Context(), request("k", time.Hour))
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, 1, made)
	require.Eventually(t, func() bool { return len(leases(t, c)) == 0 }, soon, time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	m.with("LeaseGrant", func(send func() error) error {
		cancel()
		return send()
	})
	_, err = b.TryAcquire(ctx, request("k", time.Hour))
	require.ErrorIs(t, err, context.Canceled)
	at := slot{time.Hour, 0}
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		o := b.leases[at]
		if o == nil || o.l == nil {
			return false
		}
		o.l.mu.Lock()
		defer o.l.mu.Unlock()
		return o.l.idle != nil
	}, soon, time.Millisecond, "it retires")
}

// A server may be set up to take fewer operations in one request than it does as it comes.
func TestLease_isRenewedWithFewerOperations(t *testing.T) { // H3
	t.Parallel()
	srv, err := testenv.StartEtcd(t.Context(), &testenv.EtcdConfig{Election: quick.Election, Settings: []string{"--max-txn-ops=50"}})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	b := backendOn(t, connect(t, srv.Addr()), nil)
	var renewals []locker.Renewal
	for range maxTxnOps {
		renewals = append(renewals, locker.Renewal{Grant: take(t, b, request(uuid.NewString(), 10*time.Second)), TTL: 10 * time.Second})
	}
	_, err = b.kv.Delete(t.Context(), renewals[77].Grant.(*grant).name)
	require.NoError(t, err)
	answers := make([]error, len(renewals))
	b.RenewAll(t.Context(), renewals, func(i int, _ locker.Lease, err error) { answers[i] = err })
	for i, err := range answers {
		if i == 77 {
			requireLost(t, err, locker.ReasonExpired)
		} else {
			require.NoError(t, err)
		}
	}
}
