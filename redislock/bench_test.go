package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// raw is a lock by the bare client, as plain code does it: SET NX PX and a
// compare-and-delete script. The benchmarks compare with it in the same run,
// because machines are shared.
type raw struct{ rdb *redis.Client }

func (r raw) cycle(ctx context.Context, key string) error {
	owner := uuid.NewString()
	ok, err := r.rdb.SetNX(ctx, key, owner, 30*time.Second).Result()
	if err != nil || !ok {
		return fmt.Errorf("SET NX: %v, %w", ok, err)
	}
	return rawDelete.Run(ctx, r.rdb, []string{key}, owner).Err()
}

// recommended is what the package's comment recommends.
func recommended(o *redis.Options) { o.ContextTimeoutEnabled = true }

func cycle(ctx context.Context, l locker.Locker, key string) error {
	k, err := l.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return k.Release(ctx)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// W1: one goroutine takes and releases free keys: with the Locker, with the Backend
// alone, and with the raw client.
func BenchmarkW1_cycle(b *testing.B) {
	srv := startServer(b)
	w := &wire{}
	l := lockerOn(b, connect(b, srv, w.use, recommended), nil)
	bare := backendOn(b, connect(b, srv, new(wire).use, recommended), "")
	r := raw{connect(b, srv, new(wire).use, recommended)}
	ctx := context.Background()
	require.NoError(b, cycle(ctx, l, "warm"))
	requireFree(b, bare, "warm")
	require.NoError(b, r.cycle(ctx, "warm"))
	writes := w.writes.Load()
	kinds := []func(){
		func() { _ = cycle(ctx, l, "k") },
		func() {
			g, _ := bare.TryAcquire(ctx, request("k", 30*time.Second))
			_ = g.Release(ctx)
		},
		func() { _ = r.cycle(ctx, "k") },
	}
	took := make([][]time.Duration, len(kinds))
	for b.Loop() {
		// In any order: what one leaves behind (a goroutine that ends, a thread that
		// looks for work) costs the next.
		for _, i := range rand.Perm(len(kinds)) {
			start := time.Now()
			kinds[i]()
			took[i] = append(took[i], time.Since(start))
		}
	}
	locks, backends, raws := median(took[0]), median(took[1]), median(took[2])
	b.ReportMetric(0, "ns/op") // of all together: no figure
	b.ReportMetric(float64(w.writes.Load()-writes)/float64(len(took[0])), "requests/cycle")
	b.ReportMetric(float64(locks.Nanoseconds()), "ns/cycle")
	b.ReportMetric(float64(locks)/float64(raws), "ratio-to-raw")
	b.ReportMetric(float64(backends)/float64(raws), "backend-ratio-to-raw")
	b.ReportMetric(testing.AllocsPerRun(100, func() { _ = cycle(ctx, l, "k") }), "allocs/cycle")
	b.ReportMetric(testing.AllocsPerRun(100, func() { _ = r.cycle(ctx, "k") }), "raw-allocs/cycle")
}

// W2: many goroutines, each with a key of its own. One operation is 100 cycles of
// each goroutine with the Locker, with the Backend alone, and with the raw client.
func BenchmarkW2_distinctKeys(b *testing.B) {
	for _, goroutines := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			const cycles = 100
			srv := startServer(b)
			w := &wire{}
			l := lockerOn(b, connect(b, srv, w.use, recommended), nil)
			bare := backendOn(b, connect(b, srv, new(wire).use, recommended), "")
			r := raw{connect(b, srv, new(wire).use, recommended)}
			run := func(one func(ctx context.Context, key string) error) time.Duration {
				start := time.Now()
				var wg sync.WaitGroup
				for i := range goroutines {
					wg.Go(func() {
						for range cycles {
							if err := one(context.Background(), fmt.Sprint("k", i)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				return time.Since(start)
			}
			kinds := []func(ctx context.Context, key string) error{
				func(ctx context.Context, key string) error { return cycle(ctx, l, key) },
				func(ctx context.Context, key string) error {
					g, err := bare.TryAcquire(ctx, request(key, 30*time.Second))
					if err != nil {
						return err
					}
					return g.Release(ctx)
				},
				r.cycle,
			}
			took := make([][]time.Duration, len(kinds))
			for _, kind := range kinds {
				run(kind) // connects
			}
			for b.Loop() {
				for i, kind := range kinds {
					took[i] = append(took[i], run(kind))
				}
			}
			locks, backends, raws := median(took[0]), median(took[1]), median(took[2])
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(goroutines*cycles)/locks.Seconds(), "cycles/s")
			b.ReportMetric(float64(raws)/float64(locks), "ratio-to-raw")
			b.ReportMetric(float64(raws)/float64(backends), "backend-ratio-to-raw")
			b.ReportMetric(float64(w.open()), "connections")
		})
	}
}

// W3: 64 goroutines of one process take turns on one key for a millisecond each.
// One operation is three seconds of that.
func BenchmarkW3_oneKey(b *testing.B) {
	const goroutines = 64
	srv := startServer(b)
	w := &wire{}
	l := lockerOn(b, connect(b, srv, w.use, recommended), nil)
	require.NoError(b, cycle(context.Background(), l, "warm"))
	requests := w.requests.Load()
	var acquired [goroutines]float64
	var longest [goroutines]time.Duration
	var total time.Duration
	for b.Loop() {
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				for {
					asked := time.Now()
					k, err := l.Acquire(ctx, "k")
					if err != nil {
						return
					}
					longest[i] = max(longest[i], time.Since(asked))
					acquired[i]++
					for in := time.Now(); time.Since(in) < time.Millisecond; {
						runtime.Gosched()
					}
					_ = k.Release(context.Background())
				}
			})
		}
		wg.Wait()
		cancel()
		total += time.Since(start)
	}
	var sum, squares float64
	for _, n := range acquired {
		sum += n
		squares += n * n
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(sum/total.Seconds(), "acquired/s")
	b.ReportMetric(sum*sum/(goroutines*squares), "jain")
	b.ReportMetric(float64(slices.Max(longest[:]).Milliseconds()), "ms-longest-wait")
	b.ReportMetric(float64(w.requests.Load()-requests)/sum, "requests/acquired")
}

// W5: 200 goroutines of one process wait for a key that another one holds for 10
// seconds. One operation is one such wait.
func BenchmarkW5_crowd(b *testing.B) {
	const crowd, wait = 200, 10 * time.Second
	srv := startServer(b)
	admin := connect(b, srv)
	holder := lockerOn(b, connect(b, srv), nil)
	w := &wire{}
	l := lockerOn(b, connect(b, srv, w.use, recommended), nil)
	var requests, drained float64
	for b.Loop() {
		held := acquire(b, holder, "k", locker.WithTTL(30*time.Second))
		before := w.requests.Load()
		var wg sync.WaitGroup
		for range crowd {
			wg.Go(func() { _ = cycle(context.Background(), l, "k") })
		}
		require.Eventually(b, func() bool { return subscribers(b, admin) == 1 }, soon, time.Millisecond)
		time.Sleep(wait) // what is measured is what happens in this time
		requests += float64(w.requests.Load() - before)
		start := time.Now()
		_ = held.Release(context.Background())
		wg.Wait()
		drained += float64(time.Since(start).Microseconds()) / 1000
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(requests/float64(b.N)/wait.Seconds(), "requests/s")
	b.ReportMetric(drained/float64(b.N), "ms-to-drain")
	b.ReportMetric(float64(w.open()), "connections")
}

// W6: 1,000 locks with a lease of 5 seconds are held. One operation is 10 seconds
// of that, after the first renewals have brought them together.
func BenchmarkW6_heldLocks(b *testing.B) {
	const locks, ttl, held = 1000, 5 * time.Second, 10 * time.Second
	srv := startServer(b)
	rdb := connect(b, srv)
	counts := &pipelines{}
	rdb.AddHook(counts)
	l := lockerOn(b, rdb, &Config{Config: locker.Config{TTL: ttl}})
	require.NoError(b, cycle(context.Background(), l, "warm"))
	goroutines := runtime.NumGoroutine()
	for i := range locks {
		acquire(b, l, fmt.Sprint(i))
	}
	perLock := float64(runtime.NumGoroutine()-goroutines) / locks
	require.Eventually(b, func() bool { return counts.piped.Load() >= 2 }, 2*ttl, time.Millisecond)
	counts.piped.Store(0)
	counts.single.Store(0)
	for b.Loop() {
		time.Sleep(held) // what is measured is what happens in this time
	}
	seconds := held.Seconds() * float64(b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(counts.piped.Load())/(seconds/(ttl.Seconds()/3)), "pipelines/tick")
	b.ReportMetric(float64(counts.single.Load())/seconds, "single-requests/s")
	b.ReportMetric(perLock, "goroutines/lock")
}
