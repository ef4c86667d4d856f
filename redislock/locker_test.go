package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// lockerOn makes a Locker that the test's end closes.
func lockerOn(t testing.TB, rdb redis.UniversalClient, cfg *Config) locker.Locker {
	t.Helper()
	l, err := New(rdb, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel() // a test that failed has not released its locks
		require.NoError(t, l.Close(now))
	})
	return l
}

func acquire(t testing.TB, l locker.Locker, key string, opts ...locker.Option) locker.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	k, err := l.Acquire(ctx, key, opts...)
	require.NoError(t, err)
	return k
}

func TestLocker_lostReplyLeavesNothingTaken(t *testing.T) { // C01
	bothRetrySettings(t, func(t *testing.T, retries func(*redis.Options)) {
		srv := startServer(t)
		w := &wire{}
		l := lockerOn(t, connect(t, srv, w.use, retries), nil)
		other := lockerOn(t, connect(t, srv), nil)
		require.NoError(t, acquire(t, l, "warm").Release(t.Context()))

		w.drop(1, acquireScript.sha)
		_, err := l.TryAcquire(t.Context(), "k", locker.WithTTL(time.Hour))
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, locker.ErrHeld)
		start := time.Now()
		require.NoError(t, acquire(t, other, "k").Release(t.Context()))
		require.Less(t, time.Since(start), time.Second)

		w.drop(3, acquireScript.sha)
		require.NoError(t, acquire(t, l, "k", locker.WithTTL(time.Hour)).Release(t.Context()), "Acquire tries again")
	})
}

func TestLocker_frozenServerBlocksNoCall(t *testing.T) { // C02, C06
	srv := startServer(t)
	w := &wire{}
	l := lockerOn(t, connect(t, srv, w.use), nil)
	require.NoError(t, acquire(t, l, "k").Release(t.Context()))
	require.NoError(t, srv.Pause())
	for _, call := range []func(context.Context, string, ...locker.Option) (locker.Lock, error){l.Acquire, l.TryAcquire} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		start := time.Now()
		_, err := call(ctx, "k", locker.WithTTL(time.Hour))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.Less(t, time.Since(start), 600*time.Millisecond)
	}
	require.NoError(t, srv.Resume())
	// What the server finds in its buffers is taken, and undone.
	start := time.Now()
	require.NoError(t, acquire(t, lockerOn(t, connect(t, srv), nil), "k").Release(t.Context()))
	require.Less(t, time.Since(start), 3*time.Second)
}

func TestLocker_whatWaitingDoesNotCureEndsTheWait(t *testing.T) {
	srv := startServer(t)
	rdb := connect(t, srv)
	require.NoError(t, rdb.HSet(t.Context(), "k", "field", 1).Err())
	_, err := lockerOn(t, rdb, nil).Acquire(t.Context(), "k")
	require.ErrorContains(t, err, "WRONGTYPE")
	_, err = lockerOn(t, connectAs(t, srv, "on >secret ~* &* +@all -evalsha"), nil).Acquire(t.Context(), "k")
	require.ErrorContains(t, err, "evalsha")
	var reply redis.Error
	require.ErrorAs(t, err, &reply, "the driver's own error")
}

func TestLocker_waitsThroughRefusedWrites(t *testing.T) { // C15
	srv := startServer(t)
	admin := connect(t, srv)
	w := &wire{}
	l := lockerOn(t, connect(t, srv, w.use), nil)
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	done := make(chan error, 1)
	go func() {
		k, err := l.Acquire(t.Context(), "k")
		if err == nil {
			err = k.Release(t.Context())
		}
		done <- err
	}()
	require.Eventually(t, func() bool { return w.requests.Load() >= 4 }, soon, time.Millisecond)
	select {
	case err := <-done:
		require.Fail(t, "the wait ended", "%v", err)
	default:
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, <-done)
}

func TestLocker_releaseIsPushedToAnotherProcess(t *testing.T) { // R3
	for name, rules := range map[string]string{"with channels": "on >secret ~* &* +@all", "without": "on >secret ~* resetchannels +@all"} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t)
			a := lockerOn(t, connect(t, srv), nil)
			b := lockerOn(t, connectAs(t, srv, rules), nil)
			held := acquire(t, a, "k", locker.WithTTL(time.Hour))
			done := make(chan time.Time, 1)
			go func() {
				k, err := b.Acquire(context.Background(), "k")
				done <- time.Now()
				if err != nil {
					t.Error(err)
					return
				}
				_ = k.Release(context.Background())
			}()
			if name == "with channels" {
				require.Eventually(t, func() bool { return subscribers(t, connect(t, srv)) == 1 }, soon, time.Millisecond)
			}
			released := time.Now()
			require.NoError(t, held.Release(t.Context()))
			late := (<-done).Sub(released)
			require.Less(t, late, 1500*time.Millisecond)
			t.Logf("handed over after %v", late)
		})
	}
}

func TestLocker_plainClientsReleaseIsFoundByTheClock(t *testing.T) { // C53
	t.Parallel()
	srv := startServer(t)
	rdb := connect(t, srv)
	l := lockerOn(t, connect(t, srv), nil)
	require.NoError(t, rdb.SetNX(t.Context(), "k", "crashed", 700*time.Millisecond).Err())
	start := time.Now()
	require.NoError(t, acquire(t, l, "k").Release(t.Context()))
	require.InDelta(t, 700*time.Millisecond, time.Since(start), float64(300*time.Millisecond))
}

func TestLocker_renewsWhileTheScriptCacheIsEmptiedAllTheTime(t *testing.T) { // C84
	t.Parallel()
	srv := startServer(t)
	l := lockerOn(t, connect(t, srv), nil)
	admin := connect(t, srv)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = admin.ScriptFlush(context.Background()).Err()
		}
	})
	k := acquire(t, l, "k", locker.WithTTL(300*time.Millisecond))
	cycles := 0
	for ctx.Err() == nil {
		require.NoError(t, k.Err())
		require.NoError(t, acquire(t, l, "other").Release(context.Background()))
		cycles++
	}
	flusher.Wait()
	require.NoError(t, k.Release(context.Background()))
	require.Greater(t, cycles, 10)
}

func TestLocker_lossIsSeenBeforeTheKeyCanGo(t *testing.T) { // H2, C31, C32
	const servers, trials = 4, 5
	const ttl = 500 * time.Millisecond
	t.Parallel()
	for n := range servers {
		t.Run(fmt.Sprint("server ", n), func(t *testing.T) {
			t.Parallel()
			srv := startServer(t)
			admin := connect(t, srv)
			renewed := make(chan struct{}, 100)
			l := lockerOn(t, connect(t, srv), &Config{Config: locker.Config{TTL: ttl, Observer: func(e locker.Event) {
				if e.Kind == locker.EventRenewed {
					renewed <- struct{}{}
				}
			}}})
			for trial := 0; trial < trials; {
				k := acquire(t, l, "k")
				for len(renewed) > 0 {
					<-renewed
				}
				<-renewed
				// The next renewal is a third of the TTL away.
				gone := time.UnixMilli(int64(admin.PExpireTime(t.Context(), "k").Val() / time.Millisecond))
				require.NoError(t, srv.Pause())
				if len(renewed) == 0 { // nothing moved the expiry in between
					trial++
					require.Less(t, k.Deadline().UnixMilli(), gone.UnixMilli())
					<-k.Done()
					// A busy machine may serve the timer late; Err needs none.
					require.WithinDuration(t, k.Deadline(), time.Now(), ttl/5)
					require.ErrorIs(t, k.Err(), locker.ErrLost)
				}
				require.NoError(t, srv.Resume())
				_ = k.Release(t.Context())
				require.Eventually(t, func() bool { return admin.Exists(t.Context(), "k").Val() == 0 }, soon, time.Millisecond)
			}
		})
	}
}

func TestLocker_deadlineIsNeverPastTheServersEnd(t *testing.T) { // C41
	srv := startServer(t)
	admin, w := connect(t, srv), &wire{}
	l := lockerOn(t, connect(t, srv, w.use), &Config{Config: locker.Config{TTL: 400 * time.Millisecond}})
	require.NoError(t, acquire(t, l, "k").Release(t.Context()))
	w.delay.Store(int64(10 * time.Millisecond))
	for range 200 {
		k := acquire(t, l, "k", locker.WithoutRenewal())
		server := time.UnixMilli(admin.PExpireTime(t.Context(), "k").Val().Milliseconds())
		require.False(t, k.Deadline().After(server))
		require.WithinDuration(t, server, k.Deadline(), 20*time.Millisecond+200*time.Millisecond, "nor far before it")
		require.NoError(t, k.Release(t.Context()))
	}
}

func TestLocker_crowdOfWaitersCostsNothing(t *testing.T) { // W5, C60
	t.Parallel()
	const crowd = 200
	srv := startServer(t)
	holder := lockerOn(t, connect(t, srv), nil)
	w := &wire{}
	l := lockerOn(t, connect(t, srv, w.use), nil)
	held := acquire(t, holder, "k", locker.WithTTL(30*time.Second))
	var wg sync.WaitGroup
	var served atomic.Int64
	for range crowd {
		wg.Go(func() {
			k, err := l.Acquire(context.Background(), "k")
			if err == nil {
				served.Add(1)
				_ = k.Release(context.Background())
			}
		})
	}
	require.Eventually(t, func() bool { return subscribers(t, connect(t, srv)) == 1 }, soon, time.Millisecond)
	before := w.requests.Load()
	time.Sleep(4 * time.Second) // what is measured is what happens in this time
	require.LessOrEqual(t, w.requests.Load()-before, int64(4), "a ping or two, and the look at the store after subscribing")
	start := time.Now()
	require.NoError(t, held.Release(t.Context()))
	wg.Wait()
	require.EqualValues(t, crowd, served.Load())
	require.Less(t, time.Since(start), 2*time.Second)
	t.Logf("%d waiters drained in %v, %d connections", crowd, time.Since(start), w.open())
}

func TestLocker_timedOutWaitersLeaveNothing(t *testing.T) { // C55
	srv := startServer(t)
	admin := connect(t, srv)
	holder, l := lockerOn(t, connect(t, srv), nil), lockerOn(t, connect(t, srv), nil)
	held := acquire(t, holder, "k")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if _, err := l.Acquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	keys, err := admin.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"k", "\x00token"}, keys)
	require.NoError(t, held.Release(t.Context()))

	var inside atomic.Int64
	for n := range 8 {
		l := []locker.Locker{holder, l}[n%2]
		wg.Go(func() {
			for range 20 {
				k := acquire(t, l, "k")
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				inside.Add(-1)
				_ = k.Release(context.Background())
			}
		})
	}
	wg.Wait()
}

func TestLocker_aThousandHeldLocksAreOnePipelineATick(t *testing.T) { // W6, C132
	const locks = 1000
	srv := startServer(t)
	rdb := connect(t, srv)
	counts := &pipelines{}
	rdb.AddHook(counts)
	const ttl = 3 * time.Second
	l := lockerOn(t, rdb, &Config{Config: locker.Config{TTL: ttl}})
	// Connections have goroutines of their own; the first lock makes them.
	require.NoError(t, acquire(t, l, "warm").Release(t.Context()))
	goroutines := runtime.NumGoroutine()
	held := make([]locker.Lock, locks)
	for i := range held {
		held[i] = acquire(t, l, fmt.Sprint(i))
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+5)
	require.Eventually(t, func() bool { return counts.piped.Load() >= 2 }, soon, time.Millisecond) // ticks merge at first
	counts.piped.Store(0)
	counts.single.Store(0)
	start := time.Now()
	time.Sleep(4 * time.Second) // what is measured is what happens in this time
	// A tick is a third of the TTL. Where the machine stood still it may have come in two.
	ticks := int64(time.Since(start)/(ttl/3)) + 1
	require.LessOrEqual(t, counts.piped.Load(), 2*ticks)
	require.GreaterOrEqual(t, counts.piped.Load(), int64(3))
	require.Zero(t, counts.single.Load())
	for _, k := range held {
		require.NoError(t, k.Err())
	}
}
