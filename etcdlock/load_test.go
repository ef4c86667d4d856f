package etcdlock

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/go-locker/locker"
)

// countedLocker is a Locker whose requests are counted.
func countedLocker(t *testing.T, addr string, cfg locker.Config) (l locker.Locker, requests func() int64) {
	t.Helper()
	s := new(store)
	l, err := openWith(context.Background(), clientv3.Config{Endpoints: []string{addr}, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(s.countCall), grpc.WithChainStreamInterceptor(s.countStream),
	}}, new(net.Dialer).DialContext, &Config{Config: cfg})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	return l, s.requests.Load
}

func TestLoad_anUncontendedCycleIsTwoRequests(t *testing.T) {
	t.Parallel()
	l, requests := countedLocker(t, startServer(t).Addr(), locker.Config{})
	cycle := func() {
		k, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))
	}
	cycle() // makes the lease
	require.Eventually(t, func() bool { return requests() == 6 }, soon, time.Millisecond, "grant, sentinel, watch and look, and the cycle")
	before := requests()
	for range 100 {
		cycle()
	}
	require.EqualValues(t, 200, requests()-before)
}

func TestLoad_twoHundredWaitersOfAKeyAreOne(t *testing.T) { // W2, W1
	srv := startServer(t)
	holder := lockerOn(t, connect(t, srv.Addr()), locker.Config{})
	k, err := holder.Acquire(t.Context(), "k")
	require.NoError(t, err)
	l, requests := countedLocker(t, srv.Addr(), locker.Config{TTL: 5 * time.Minute})
	var served sync.WaitGroup
	for range 200 {
		served.Go(func() {
			k, err := l.Acquire(t.Context(), "k")
			if err == nil {
				err = k.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	looker := connect(t, srv.Addr())
	require.Eventually(t, func() bool { return len(entries(t, looker)) == 2 }, soon, time.Millisecond)
	// The lease, its sentinel, and the watch of that with a look at it; an attempt, and how long
	// the holder has; the place, and the watch of the entry ahead with a look at it.
	const begun = 9
	require.Eventually(t, func() bool { return requests() == begun }, soon, time.Millisecond)
	const measured = unseen - 3*time.Second // before the next look, for which there is time
	time.Sleep(measured)
	require.EqualValues(t, begun, requests())
	start := time.Now()
	require.NoError(t, k.Release(t.Context()))
	served.Wait()
	t.Logf("no request in %v; 200 waiters served in %v", measured, time.Since(start))
}

func TestLoad_aThousandLocksAreRenewedTogether(t *testing.T) { // House, C132
	l, requests := countedLocker(t, startServer(t).Addr(), locker.Config{TTL: 6 * time.Second})
	first, err := l.Acquire(t.Context(), "first")
	require.NoError(t, err)
	goroutines := runtime.NumGoroutine()
	locks := []locker.Lock{first}
	for i := range 999 {
		k, err := l.Acquire(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		locks = append(locks, k)
	}
	require.Less(t, runtime.NumGoroutine()-goroutines, 50, "those of the watch may have come meanwhile")
	renewed := func() bool { // all, from now on
		now := time.Now()
		for _, k := range locks {
			if k.Deadline().Sub(now) < k.TTL()*2/3 {
				return false
			}
		}
		return true
	}
	require.Eventually(t, renewed, 2*soon, 10*time.Millisecond)
	before, start := requests(), time.Now()
	time.Sleep(6 * time.Second)
	ticks := float64(time.Since(start)) / float64(2*time.Second)
	sent := requests() - before
	t.Logf("%d requests in %v for 1,000 locks", sent, time.Since(start))
	require.LessOrEqual(t, float64(sent), (ticks+1)*9)
	var released sync.WaitGroup
	for _, k := range locks {
		released.Go(func() {
			if err := k.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	released.Wait()
}
