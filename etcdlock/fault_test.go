package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

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

// A server that is slow all the time is heard, and one that has slept for longer than a request
// is given is not the caller's deadline.
func TestFault_aSlowServerIsHeardInTheEnd(t *testing.T) { // W4, G6
	t.Parallel()
	srv := startServer(t)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if !pause(ctx, minSlice*6/5) {
				return ctx.Err()
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	l := lockerOn(t, c, locker.Config{})
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorContains(t, err, "no answer within 1s")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeout(t.Context(), 6*soon)
	defer cancel()
	k, err := l.Acquire(ctx, "k")
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
}

// What a waiter has heard of the holder is not told for longer than the holder's lease.
func TestFault_anOutageIsNotHeldForWhoComesBehindAWaiter(t *testing.T) { // G7
	t.Parallel()
	srv := startServer(t)
	looker := connect(t, srv.Addr())
	holder := lockerOn(t, connect(t, srv.Addr()), locker.Config{TTL: 2 * time.Second})
	l := lockerOn(t, connect(t, srv.Addr()), locker.Config{TTL: 30 * time.Second})
	k, err := holder.Acquire(t.Context(), "k")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() { _, _ = l.Acquire(ctx, "k") })
	require.Eventually(t, func() bool { return len(entries(t, looker)) == 2 }, soon, time.Millisecond)
	require.NoError(t, srv.Kill())
	require.Eventually(t, func() bool {
		_, err := l.TryAcquire(t.Context(), "k")
		return err != nil && !errors.Is(err, locker.ErrHeld)
	}, soon, 10*time.Millisecond)
	require.NoError(t, srv.Restart(t.Context()))
	cancel()
	waiting.Wait()
	_ = k.Release(t.Context())
}
