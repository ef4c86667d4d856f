package etcdlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// Another lock keeps the lease alive meanwhile, so nothing but the Locker frees the key.
func TestFault_aReleaseThatGotLostIsDoneWhenTheServerIsBack(t *testing.T) { // R4, C21
	t.Parallel()
	srv := startServer(t)
	looker := connect(t, srv.Addr())
	l := opened(t, srv.URL(), locker.Config{TTL: 30 * time.Second})
	kept, err := l.Acquire(t.Context(), "kept")
	require.NoError(t, err)
	var took []time.Duration
	for range 5 {
		k, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, srv.Pause())
		require.Error(t, k.Release(t.Context()))
		require.NoError(t, srv.Resume())
		start := time.Now()
		require.Eventually(t, func() bool { return !slices.ContainsFunc(entries(t, looker), isKey("k")) }, soon, time.Millisecond)
		took = append(took, time.Since(start))
	}
	require.NoError(t, kept.Err())
	require.NoError(t, kept.Release(t.Context()))
	t.Logf("the entry went %v .. %v after the server answered again", slices.Min(took), slices.Max(took))
}

func isKey(key string) func(string) bool {
	b := &backend{prefix: DefaultPrefix}
	return func(name string) bool {
		k, _, ok := b.keyOf(name)
		return ok && k == key
	}
}

// The watch of a waiter, and that of a lease, may have to begin again from a revision that
// is gone by then.
func TestFault_waitersOutliveACompaction(t *testing.T) { // C58, C59
	t.Parallel()
	srv := startServer(t)
	admin := connect(t, srv.Addr())
	holder := lockerOn(t, connect(t, srv.Addr()), locker.Config{})
	k, err := holder.Acquire(t.Context(), "k")
	require.NoError(t, err)
	l := opened(t, srv.URL(), locker.Config{TTL: 30 * time.Second})
	got := make(chan locker.Lock, 1)
	go func() {
		if k, err := l.Acquire(t.Context(), "k"); err == nil {
			got <- k
		}
	}()
	require.Eventually(t, func() bool { return len(entries(t, admin)) == 2 }, soon, time.Millisecond)
	var last int64
	for range 100 {
		put, err := admin.Put(t.Context(), "other", "x")
		require.NoError(t, err)
		last = put.Header.Revision
	}
	_, err = admin.Compact(t.Context(), last)
	require.NoError(t, err)
	require.NoError(t, srv.Restart(t.Context())) // which ends all watches
	require.NoError(t, k.Err())
	require.NoError(t, k.Release(t.Context()))
	select {
	case k := <-got:
		_, err := admin.Revoke(t.Context(), leaseOf(k).id)
		require.NoError(t, err)
		select {
		case <-k.Done():
		case <-time.After(soon):
			require.Fail(t, "the loss was not told")
		}
	case <-time.After(2 * soon):
		require.Fail(t, "the waiter was forgotten")
	}
	require.Empty(t, entries(t, admin))
}

func TestFault_aFullStoreGrantsNothingAndKeepsWhatIsHeld(t *testing.T) {
	t.Parallel()
	srv, err := testenv.StartEtcd(t.Context(), &testenv.EtcdConfig{Election: quick.Election, Quota: 1 << 20})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	admin := connect(t, srv.Addr())
	l := lockerOn(t, connect(t, srv.Addr()), locker.Config{TTL: 2 * time.Second})
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	for err == nil {
		_, err = admin.Put(t.Context(), "big", string(make([]byte, 100_000)))
	}
	_, err = l.TryAcquire(t.Context(), "other")
	require.ErrorContains(t, err, "space")
	require.NotErrorIs(t, err, locker.ErrHeld)
	require.False(t, isPermanent(errors.Unwrap(err)), "it passes")
	before := k.Deadline()
	require.Eventually(t, func() bool { return k.Deadline().After(before) }, soon, time.Millisecond, "it is renewed")
	require.NoError(t, k.Release(t.Context()))
	require.Empty(t, entries(t, admin))
}

func TestFault_whatWaitingDoesNotCureEndsTheWait(t *testing.T) { // W4
	t.Parallel()
	srv := startServer(t)
	admin := connect(t, srv.Addr())
	ctx := t.Context()
	for _, do := range []func() error{
		func() (err error) { _, err = admin.UserAdd(ctx, "root", "secret"); return err },
		func() (err error) { _, err = admin.UserGrantRole(ctx, "root", "root"); return err },
		func() (err error) { _, err = admin.UserAdd(ctx, "app", "secret"); return err },
		func() (err error) { _, err = admin.RoleAdd(ctx, "app"); return err },
		func() (err error) { _, err = admin.UserGrantRole(ctx, "app", "app"); return err },
		func() (err error) {
			_, err = admin.RoleGrantPermission(ctx, "app", "app/", clientv3.GetPrefixRangeEnd("app/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() (err error) { _, err = admin.AuthEnable(ctx); return err },
	} {
		require.NoError(t, do())
	}
	allowed := opened(t, "etcd://app:secret@"+srv.Addr()+"/app/", locker.Config{TTL: 2 * time.Second})
	k, err := allowed.Acquire(ctx, "k")
	require.NoError(t, err, "the rights that the package's documentation names")
	before := k.Deadline()
	require.Eventually(t, func() bool { return k.Deadline().After(before) }, soon, time.Millisecond)
	_, err = allowed.TryAcquire(ctx, "k")
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, k.Release(ctx))

	denied := opened(t, "etcd://app:secret@"+srv.Addr()+"/others/", locker.Config{})
	bounded, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	_, err = denied.Acquire(bounded, "k")
	require.ErrorContains(t, err, "permission denied")
	require.NoError(t, bounded.Err())
	_, err = locker.Open(ctx, "etcd://app:wrong@"+srv.Addr()+"/app/")
	require.ErrorContains(t, err, "authentication failed")
	require.NotContains(t, err.Error(), "wrong")
}
