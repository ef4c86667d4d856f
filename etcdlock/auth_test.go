package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// startGuarded starts a server that wants a user: root, or app, who has the rights that the
// package's documentation names. Root's client is admin.
func startGuarded(t *testing.T, settings ...string) (srv *testenv.Etcd, admin *clientv3.Client) {
	t.Helper()
	srv, err := testenv.StartEtcd(t.Context(), &testenv.EtcdConfig{Election: quick.Election, Settings: append([]string{"--bcrypt-cost=4"}, settings...)})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	c := connect(t, srv.Addr())
	ctx := t.Context()
	for _, do := range []func() error{
		func() (err error) { _, err = c.UserAdd(ctx, "root", "secret"); return err },
		func() (err error) { _, err = c.UserGrantRole(ctx, "root", "root"); return err },
		func() (err error) { _, err = c.UserAdd(ctx, "app", "secret"); return err },
		func() (err error) { _, err = c.RoleAdd(ctx, "app"); return err },
		func() (err error) { _, err = c.UserGrantRole(ctx, "app", "app"); return err },
		func() error { return allow(ctx, c) },
		func() (err error) { _, err = c.AuthEnable(ctx); return err },
	} {
		require.NoError(t, do())
	}
	return srv, as(t, srv, "root")
}

func allow(ctx context.Context, admin *clientv3.Client) error {
	_, err := admin.RoleGrantPermission(ctx, "app", DefaultPrefix, clientv3.GetPrefixRangeEnd(DefaultPrefix), clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

func forbid(t *testing.T, admin *clientv3.Client) {
	t.Helper()
	_, err := admin.RoleRevokePermission(t.Context(), "app", DefaultPrefix, clientv3.GetPrefixRangeEnd(DefaultPrefix))
	require.NoError(t, err)
}

// as is a user's client.
func as(t *testing.T, srv *testenv.Etcd, user string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: user, Password: "secret", DialTimeout: soon, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func acquired(t *testing.T, l locker.Locker, key string) locker.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*soon)
	defer cancel()
	k, err := l.Acquire(ctx, key)
	require.NoError(t, err)
	return k
}

func TestAuth_theDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	srv, _ := startGuarded(t)
	allowed := opened(t, "etcd://app:secret@"+srv.Addr(), locker.Config{TTL: 2 * time.Second})
	k := acquired(t, allowed, "k")
	before := k.Deadline()
	require.Eventually(t, func() bool { return k.Deadline().After(before) }, soon, time.Millisecond)
	_, err := allowed.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, k.Release(t.Context()))
}

func TestAuth_whatWaitingDoesNotCureEndsTheWait(t *testing.T) { // W4
	t.Parallel()
	srv, _ := startGuarded(t)
	for name, l := range map[string]locker.Locker{
		"no rights": opened(t, "etcd://app:secret@"+srv.Addr()+"/others/", locker.Config{}),
		"no user":   opened(t, srv.URL(), locker.Config{}),
	} {
		bounded, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		_, err := l.Acquire(bounded, "k")
		require.ErrorContains(t, err, "permission denied", name)
		require.NoError(t, bounded.Err(), name)
	}
	_, err := locker.Open(t.Context(), "etcd://app:wrong@"+srv.Addr())
	require.ErrorContains(t, err, "authentication failed")
	require.NotContains(t, err.Error(), "wrong")
}

// The stream that a client's watches share keeps the login that it was opened with.
func TestAuth_aWaiterIsWokenAfterTheLoginIsOver(t *testing.T) { // R3, W1
	t.Parallel()
	srv, _ := startGuarded(t, "--auth-token-ttl=1")
	looker := as(t, srv, "root")
	holder := lockerOn(t, as(t, srv, "app"), locker.Config{TTL: 10 * time.Minute})
	l := lockerOn(t, as(t, srv, "app"), locker.Config{TTL: 10 * time.Minute})
	own := acquired(t, l, "own") // its lease is watched
	k := acquired(t, holder, "k")
	time.Sleep(4 * time.Second) // it is over when nothing uses it, and whoever looks does
	got := make(chan locker.Lock, 1)
	go func() {
		if k, err := l.Acquire(context.Background(), "k"); err == nil {
			got <- k
		}
	}()
	require.Eventually(t, func() bool { return len(entries(t, looker)) == 3 }, soon, time.Millisecond)
	require.NoError(t, k.Release(t.Context()))
	select {
	case k := <-got:
		require.NoError(t, k.Release(t.Context()))
	case <-time.After(soon):
		require.Fail(t, "the waiter was not told")
	}
	require.NoError(t, own.Release(t.Context()))
}

// Nobody keeps alive what could not be taken out of the line.
func TestAuth_aWaiterThatLostItsRightsDoesNotBlockTheKey(t *testing.T) { // W3, G4
	t.Parallel()
	srv, admin := startGuarded(t)
	holder := lockerOn(t, as(t, srv, "root"), locker.Config{TTL: 2 * time.Second})
	l := lockerOn(t, as(t, srv, "app"), locker.Config{TTL: 2 * time.Second})
	k := acquired(t, holder, "k")
	ended := make(chan error, 1)
	go func() {
		_, err := l.Acquire(context.Background(), "k")
		ended <- err
	}()
	require.Eventually(t, func() bool { return len(entries(t, admin)) == 2 }, soon, time.Millisecond)
	forbid(t, admin)
	require.NoError(t, k.Release(t.Context()))
	require.ErrorContains(t, <-ended, "permission denied")
	require.NoError(t, allow(t.Context(), admin))
	require.NoError(t, acquired(t, holder, "k").Release(t.Context()))
}

// What could not be given back ends with its lease, which takes no new locks.
func TestAuth_aReleaseThatWasRefusedEndsWithItsLease(t *testing.T) { // R4
	t.Parallel()
	srv, admin := startGuarded(t)
	root := lockerOn(t, admin, locker.Config{TTL: 2 * time.Second})
	l := lockerOn(t, as(t, srv, "app"), locker.Config{TTL: 2 * time.Second})
	kept, k := acquired(t, l, "kept"), acquired(t, l, "k")
	forbid(t, admin)
	require.ErrorContains(t, k.Release(t.Context()), "permission denied")
	require.NoError(t, allow(t.Context(), admin))
	next := acquired(t, l, "next")
	require.NotSame(t, leaseOf(kept), leaseOf(next))
	require.NoError(t, kept.Release(t.Context()))
	require.NoError(t, acquired(t, root, "k").Release(t.Context()))
	require.NoError(t, next.Release(t.Context()))
}
