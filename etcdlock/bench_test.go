package etcdlock

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
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// rivals are what the benchmarks compare with in the same run, because machines are shared:
// plain transactions, and concurrency.Mutex on a shared session.
type rivals struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func newRivals(b *testing.B, srv *testenv.Etcd) rivals {
	c := connect(b, srv.Addr())
	s, err := concurrency.NewSession(c, concurrency.WithTTL(30))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return rivals{c, s}
}

func (r rivals) raw(ctx context.Context, key string) error {
	done, err := r.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, uuid.NewString(), clientv3.WithLease(r.session.Lease()))).Commit()
	if err != nil || !done.Succeeded {
		return fmt.Errorf("create: %v, %w", done, err)
	}
	_, err = r.client.Delete(ctx, key)
	return err
}

func (r rivals) mutex(ctx context.Context, key string) error {
	m := concurrency.NewMutex(r.session, "mutex/"+key)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	return m.Unlock(ctx)
}

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

// server is one that keeps each write on disk, as it comes.
func server(b *testing.B) *testenv.Etcd {
	b.Helper()
	srv, err := testenv.StartEtcd(b.Context(), &testenv.EtcdConfig{Sync: true})
	started(b, err)
	b.Cleanup(func() { require.NoError(b, srv.Stop()) })
	return srv
}

// W1: one goroutine takes and releases free keys.
func BenchmarkW1_cycle(b *testing.B) {
	srv := server(b)
	l, r := lockerOn(b, connect(b, srv.Addr()), locker.Config{}), newRivals(b, srv)
	ctx := context.Background()
	kinds := []func() error{
		func() error { return cycle(ctx, l, "k") },
		func() error { return r.raw(ctx, "k") },
		func() error { return r.mutex(ctx, "k") },
	}
	took := make([][]time.Duration, len(kinds))
	for _, kind := range kinds {
		require.NoError(b, kind()) // connects
	}
	for b.Loop() {
		// In any order: what one leaves behind costs the next.
		for _, i := range rand.Perm(len(kinds)) {
			start := time.Now()
			require.NoError(b, kinds[i]())
			took[i] = append(took[i], time.Since(start))
		}
	}
	locks := median(took[0])
	b.ReportMetric(0, "ns/op") // of all together: no figure
	b.ReportMetric(float64(locks.Nanoseconds()), "ns/cycle")
	b.ReportMetric(float64(locks)/float64(median(took[1])), "ratio-to-raw")
	b.ReportMetric(float64(locks)/float64(median(took[2])), "ratio-to-mutex")
	b.ReportMetric(testing.AllocsPerRun(100, func() { _ = kinds[0]() }), "allocs/cycle")
	b.ReportMetric(testing.AllocsPerRun(100, func() { _ = kinds[2]() }), "mutex-allocs/cycle")
}

// W2: many goroutines, each with a key of its own. One operation is 20 cycles of each.
func BenchmarkW2_distinctKeys(b *testing.B) {
	for _, goroutines := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			const cycles = 20
			srv := server(b)
			l, r := lockerOn(b, connect(b, srv.Addr()), locker.Config{}), newRivals(b, srv)
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
				func(ctx context.Context, key string) error { return cycle(ctx, l, key) }, r.raw, r.mutex,
			}
			took := make([][]time.Duration, len(kinds))
			for _, kind := range kinds {
				run(kind)
			}
			for b.Loop() {
				for i, kind := range kinds {
					took[i] = append(took[i], run(kind))
				}
			}
			locks := median(took[0])
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(goroutines*cycles)/locks.Seconds(), "cycles/s")
			b.ReportMetric(float64(median(took[1]))/float64(locks), "ratio-to-raw")
			b.ReportMetric(float64(median(took[2]))/float64(locks), "ratio-to-mutex")
		})
	}
}

// W3: goroutines of one process take turns on one key for a millisecond each. One operation is
// three seconds of that with the Locker, and with a concurrency.Mutex for each goroutine on a
// session of its own, since two on one session do not exclude each other.
func BenchmarkW3_oneKey(b *testing.B) {
	for _, goroutines := range []int{16, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			srv := server(b)
			l := lockerOn(b, connect(b, srv.Addr()), locker.Config{})
			c := connect(b, srv.Addr())
			mutexes := make([]*concurrency.Mutex, goroutines)
			for i := range mutexes {
				s, err := concurrency.NewSession(c, concurrency.WithTTL(30))
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, s.Close()) })
				mutexes[i] = concurrency.NewMutex(s, "mutex/k")
			}
			turns := func(take func(ctx context.Context, i int) (give func(), err error)) (each []float64) {
				each = make([]float64, goroutines)
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for i := range goroutines {
					wg.Go(func() {
						for {
							give, err := take(ctx, i)
							if err != nil {
								return
							}
							each[i]++
							for in := time.Now(); time.Since(in) < time.Millisecond; {
								runtime.Gosched()
							}
							give()
						}
					})
				}
				wg.Wait()
				return each
			}
			var ours, theirs, squares float64
			for b.Loop() {
				for _, n := range turns(func(ctx context.Context, _ int) (func(), error) {
					k, err := l.Acquire(ctx, "k")
					return func() { _ = k.Release(context.Background()) }, err
				}) {
					ours += n
					squares += n * n
				}
				for _, n := range turns(func(ctx context.Context, i int) (func(), error) {
					err := mutexes[i].Lock(ctx)
					return func() { _ = mutexes[i].Unlock(context.Background()) }, err
				}) {
					theirs += n
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours/3/float64(b.N), "acquired/s")
			b.ReportMetric(ours/theirs, "ratio-to-mutex")
			b.ReportMetric(ours*ours/(float64(goroutines)*squares*float64(b.N)), "jain")
		})
	}
}

// W4: waiters in processes of their own, which are clients here, take turns on one key. One
// operation is a hundred hand-overs from a release to a waiter who stands in line.
func BenchmarkW4_handOver(b *testing.B) {
	const waiters, rounds = 8, 100
	srv := server(b)
	type party struct{ take, give func() }
	ctx := context.Background()
	ours, theirs := make([]party, waiters), make([]party, waiters)
	for i := range waiters {
		l := lockerOn(b, connect(b, srv.Addr()), locker.Config{})
		var k locker.Lock
		ours[i] = party{func() { k, _ = l.Acquire(ctx, "k") }, func() { _ = k.Release(ctx) }}
		s, err := concurrency.NewSession(connect(b, srv.Addr()), concurrency.WithTTL(30))
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, s.Close()) })
		m := concurrency.NewMutex(s, "mutex/k")
		theirs[i] = party{func() { _ = m.Lock(ctx) }, func() { _ = m.Unlock(ctx) }}
	}
	handOvers := func(all []party) (took []time.Duration) {
		var mu sync.Mutex
		var released time.Time
		var wg sync.WaitGroup
		for _, p := range all {
			wg.Go(func() {
				for range rounds / waiters {
					p.take()
					mu.Lock()
					if !released.IsZero() {
						took = append(took, time.Since(released))
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					released = time.Now()
					mu.Unlock()
					p.give()
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		return took
	}
	var o, m []time.Duration
	for b.Loop() {
		o = append(o, handOvers(ours)...)
		m = append(m, handOvers(theirs)...)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(median(o).Microseconds()), "us-p50")
	b.ReportMetric(float64(median(m).Microseconds()), "mutex-us-p50")
	b.ReportMetric(float64(median(o))/float64(median(m)), "ratio-to-mutex")
}
