package etcdlock

import (
	"context"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/go-locker/locker"
)

// An operator removes the entry of a waiter: it gets in line anew, and its old entry is forgotten.
func TestPlace_thatWasRemovedGetsInLineAnew(t *testing.T) { // W3, C33
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	first := p.e
	_, err := c.Delete(t.Context(), first.name)
	require.NoError(t, err)
	p.call()
	_, err = p.Claim(t.Context())
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NotSame(t, first, p.e)
	require.Len(t, p.e.l.entries, 2)
	require.Equal(t, 1, p.e.l.places)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, claim(t, p).Release(t.Context()))
	require.Empty(t, entries(t, c))
}

// The refusal shows who holds the key, and for how long.
func TestPlace_saysHowLongItMayTake(t *testing.T) { // G3
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	p.call()
	_, err := p.Claim(t.Context())
	var he *locker.HeldError
	require.ErrorAs(t, err, &he)
	require.Equal(t, held.holder, he.Holder)
	require.Greater(t, he.Remaining, 5*time.Second)
	require.NoError(t, p.Leave(t.Context()))
	require.NoError(t, held.Release(t.Context()))
}

// The watch of the entry ahead ends with the wait, also if a look found its end first.
func TestPlace_stopsWatchingWhenItIsClaimed(t *testing.T) { // House
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	p.mu.Lock()
	watching, cancel := context.WithCancel(t.Context())
	stop := p.waits
	p.waits = func() { stop(); cancel() }
	p.mu.Unlock()
	require.NoError(t, held.Release(t.Context()))
	g := claim(t, p)
	require.Error(t, watching.Err())
	require.NoError(t, g.Release(t.Context()))
}

// hushed is a stream on which nothing comes any more, if so told.
type hushed struct {
	grpc.ClientStream
	hush *atomic.Bool
}

func (h hushed) RecvMsg(m any) error {
	for {
		if err := h.ClientStream.RecvMsg(m); err != nil || !h.hush.Load() {
			return err
		}
	}
}

// A watch that hangs costs what the holder's lease has left, whatever the waiter's own TTL.
func TestPlace_looksWhenTheHoldersLeaseEnds(t *testing.T) { // W1
	t.Parallel()
	srv := startServer(t)
	var hush atomic.Bool
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{srv.Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := open(ctx, desc, cc, method, opts...)
				if path.Base(method) == "Watch" {
					return hushed{s, &hush}, err
				}
				return s, err
			})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	looker := connect(t, srv.Addr())
	take(t, backendOn(t, looker, &Config{MinTTL: time.Second}), request("k", 2*time.Second)) // nobody renews it
	l := lockerOn(t, c, locker.Config{TTL: time.Minute})
	got := make(chan locker.Lock, 1)
	go func() {
		if k, err := l.Acquire(context.Background(), "k"); err == nil {
			got <- k
		}
	}()
	require.Eventually(t, func() bool { return len(entries(t, looker)) == 2 }, soon, time.Millisecond)
	hush.Store(true)
	select {
	case k := <-got:
		hush.Store(false)
		require.NoError(t, k.Release(t.Context()))
	case <-time.After(soon):
		require.Fail(t, "the waiter waits for a watch that hangs")
	}
}
