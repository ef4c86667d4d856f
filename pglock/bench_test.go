package pglock

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// mode is one of the three kinds of locks, and the plain code that it is compared with in
// the same run, because machines are shared.
type mode struct {
	name string

	// backend makes the Backend for locks of ttl, with wake-ups.
	backend func(ctx context.Context, pool *pgxpool.Pool, ttl time.Duration) (locker.Backend, error)

	// raw takes and releases a key by the bare driver.
	raw func(ctx context.Context, pool *pgxpool.Pool, key string) error
}

var (
	advisoryMode = mode{"advisory", func(ctx context.Context, pool *pgxpool.Pool, ttl time.Duration) (locker.Backend, error) {
		return NewBackend(ctx, pool, &Config{Create: true, Config: locker.Config{TTL: ttl}})
	}, rawAdvisory}
	leaseMode = mode{"lease", func(ctx context.Context, pool *pgxpool.Pool, _ time.Duration) (locker.Backend, error) {
		return NewLeaseBackend(ctx, pool, &LeaseConfig{Create: true, Listen: pool})
	}, rawLease}
	rowMode = mode{"row", func(ctx context.Context, pool *pgxpool.Pool, _ time.Duration) (locker.Backend, error) {
		return NewRowBackend(ctx, pool, &RowConfig{Create: true})
	}, rawRow}
)

// rawAdvisory is pg_try_advisory_lock and pg_advisory_unlock, on one connection.
func rawAdvisory(ctx context.Context, pool *pgxpool.Pool, key string) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	number := Key("raw", key)
	var ok bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", number).Scan(&ok); err != nil || !ok {
		return fmt.Errorf("lock: %v, %w", ok, err)
	}
	return conn.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", number).Scan(&ok)
}

// rawLease is an upsert and an update. Neither tells who holds a key, or wakes anybody.
func rawLease(ctx context.Context, pool *pgxpool.Pool, key string) error {
	owner := uuid.NewString()
	var token int64
	if err := pool.QueryRow(ctx, bareAcquire, "raw "+key, owner, int64(30e6)).Scan(&token); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, bareRelease, "raw "+key, owner, token)
	return err
}

// rawRow is SELECT FOR UPDATE in a transaction, on a row that is there.
func rawRow(ctx context.Context, pool *pgxpool.Pool, key string) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to roll back after the commit
	if _, err := tx.Exec(ctx, "SELECT FROM locker_row WHERE key = $1 FOR UPDATE NOWAIT", "raw "+key); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// metered counts what is sent over connections: statements, and the writes that carry them.
type metered struct{ conns, writes, statements atomic.Int64 }

func (n *metered) use(cfg *pgxpool.Config) {
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		n.conns.Add(1)
		return &meteredConn{Conn: conn, n: n}, nil
	}
}

type meteredConn struct {
	net.Conn
	n    *metered
	once sync.Once
}

func (c *meteredConn) Write(p []byte) (int, error) {
	c.n.writes.Add(1)
	// The first byte of all messages but the first is their type, and then comes the length.
	for at := 0; at+5 <= len(p); {
		if p[at] == 0 {
			break
		}
		if bytes.IndexByte([]byte("EQ"), p[at]) >= 0 {
			c.n.statements.Add(1)
		}
		at += 1 + int(binary.BigEndian.Uint32(p[at+1:]))
	}
	return c.Conn.Write(p)
}

func (c *meteredConn) Close() error {
	c.once.Do(func() { c.n.conns.Add(-1) })
	return c.Conn.Close()
}

// contest is a mode's Locker, its Backend alone, and the plain code, on one server, each
// with a pool of its own.
type contest struct {
	locker  locker.Locker
	backend locker.Backend
	metered *metered // of the Locker
	kinds   []func(ctx context.Context, key string) error
}

func newContest(b *testing.B, url string, m mode) *contest {
	b.Helper()
	c := &contest{metered: &metered{}}
	c.locker = lockerOn(b, m, connect(b, url, c.metered.use), locker.DefaultTTL)
	c.backend = backendOn(b, m, connect(b, url, new(metered).use), locker.DefaultTTL)
	pool := connect(b, url, new(metered).use)
	c.kinds = []func(ctx context.Context, key string) error{
		func(ctx context.Context, key string) error { return takeAndGive(ctx, c.locker, key) },
		func(ctx context.Context, key string) error {
			g, err := c.backend.TryAcquire(ctx, request("bare "+key, locker.DefaultTTL))
			if err != nil {
				return err
			}
			return g.Release(ctx)
		},
		func(ctx context.Context, key string) error { return m.raw(ctx, pool, key) },
	}
	return c
}

func backendOn(b *testing.B, m mode, pool *pgxpool.Pool, ttl time.Duration) locker.Backend {
	b.Helper()
	backend, err := m.backend(context.Background(), pool, ttl)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, backend.(locker.Closer).Close(context.Background())) })
	return backend
}

// lockerOn has locks of ttl. Its end is the Backend's.
func lockerOn(b *testing.B, m mode, pool *pgxpool.Pool, ttl time.Duration) locker.Locker {
	b.Helper()
	backend, err := m.backend(context.Background(), pool, ttl)
	require.NoError(b, err)
	l, err := locker.New(backend, &locker.Config{TTL: ttl})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, l.Close(context.Background())) })
	return l
}

// rawRows makes the rows that rawRow locks.
func rawRows(b *testing.B, url string) {
	exec(b, connect(b, url), `INSERT INTO locker_row (key) VALUES ('raw k') ON CONFLICT DO NOTHING`)
}

func takeAndGive(ctx context.Context, l locker.Locker, key string) error {
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
// alone, and with the bare driver. The server keeps each write on disk, except where
// nothing but the work itself is to be seen.
func BenchmarkW1_cycle(b *testing.B) {
	for _, disk := range []string{"on", "off"} {
		srv := startServer(b, "fsync = "+disk)
		for _, m := range []mode{advisoryMode, leaseMode, rowMode} {
			b.Run(m.name+"/fsync="+disk, func(b *testing.B) {
				c := newContest(b, srv.URL(), m)
				ctx := context.Background()
				if m.name == rowMode.name {
					rawRows(b, srv.URL())
				}
				for _, kind := range c.kinds {
					for range 10 { // connects, and prepares
						require.NoError(b, kind(ctx, "k"))
					}
				}
				statements, writes := c.metered.statements.Load(), c.metered.writes.Load()
				took := make([][]time.Duration, len(c.kinds))
				for b.Loop() {
					// In any order: what one leaves behind (a goroutine that ends, a thread that
					// looks for work) costs the next.
					for _, i := range rand.Perm(len(c.kinds)) {
						start := time.Now()
						err := c.kinds[i](ctx, "k")
						took[i] = append(took[i], time.Since(start))
						require.NoError(b, err)
					}
				}
				cycles := float64(len(took[0]))
				b.ReportMetric(0, "ns/op") // of all together: no figure
				b.ReportMetric(float64(c.metered.statements.Load()-statements)/cycles, "statements/cycle")
				b.ReportMetric(float64(c.metered.writes.Load()-writes)/cycles, "writes/cycle")
				locks, backends, raws := median(took[0]), median(took[1]), median(took[2])
				b.ReportMetric(float64(locks.Nanoseconds()), "ns/cycle")
				b.ReportMetric(float64(locks)/float64(raws), "ratio-to-raw")
				b.ReportMetric(float64(backends)/float64(raws), "backend-ratio-to-raw")
				b.ReportMetric(testing.AllocsPerRun(100, func() { _ = c.kinds[0](ctx, "k") }), "allocs/cycle")
				b.ReportMetric(testing.AllocsPerRun(100, func() { _ = c.kinds[2](ctx, "k") }), "raw-allocs/cycle")
			})
		}
	}
}

// W2: many goroutines, each with a key of its own. One operation is 100 cycles of each
// goroutine (of leases, which wait for the disk, 5) with the Locker, with the Backend
// alone, and with the bare driver, whose pools have their default size.
func BenchmarkW2_distinctKeys(b *testing.B) {
	srv := startServer(b)
	for _, m := range []mode{advisoryMode, leaseMode} {
		cycles := 100
		if m.name == leaseMode.name {
			cycles = 5
		}
		for _, goroutines := range []int{1, 16, 256} {
			b.Run(fmt.Sprint(m.name, "/", goroutines), func(b *testing.B) {
				c := newContest(b, srv.URL(), m)
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
				took := make([][]time.Duration, len(c.kinds))
				for _, kind := range c.kinds {
					run(kind) // connects, and makes the rows
				}
				statements := c.metered.statements.Load()
				for b.Loop() {
					for i, kind := range c.kinds {
						took[i] = append(took[i], run(kind))
					}
				}
				statements = c.metered.statements.Load() - statements
				all := float64(goroutines * cycles)
				locks, backends, raws := median(took[0]), median(took[1]), median(took[2])
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(all/locks.Seconds(), "cycles/s")
				b.ReportMetric(float64(raws)/float64(locks), "ratio-to-raw")
				b.ReportMetric(float64(raws)/float64(backends), "backend-ratio-to-raw")
				b.ReportMetric(float64(statements)/all/float64(len(took[0])), "statements/cycle")
				b.ReportMetric(float64(c.metered.conns.Load()), "connections")
			})
		}
	}
}

// W3: 64 goroutines of one process take turns on one key for a millisecond each.
// One operation is three seconds of that.
func BenchmarkW3_oneKey(b *testing.B) {
	const goroutines = 64
	srv := startServer(b)
	for _, m := range []mode{advisoryMode, leaseMode, rowMode} {
		b.Run(m.name, func(b *testing.B) {
			n := &metered{}
			l := lockerOn(b, m, connect(b, srv.URL(), n.use), locker.DefaultTTL)
			require.NoError(b, takeAndGive(context.Background(), l, "warm"))
			statements := n.statements.Load()
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
			var sum, squares, starved float64
			for _, n := range acquired {
				sum += n
				squares += n * n
				if n == 0 {
					starved++
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(sum/total.Seconds(), "acquired/s")
			b.ReportMetric(sum*sum/(goroutines*squares), "jain")
			b.ReportMetric(starved, "starved")
			b.ReportMetric(float64(slices.Max(longest[:]).Milliseconds()), "ms-longest-wait")
			b.ReportMetric(float64(n.statements.Load()-statements)/sum, "statements/acquired")
		})
	}
}

// restingWaiters is the number of sessions that wait for a key: by a mark, or in the server's line.
const restingWaiters = `SELECT count(DISTINCT pid) FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid = 2 AND mode = 'ShareLock' OR NOT granted`

// W5: 200 goroutines of one process wait for a key that another one holds for 10
// seconds. One operation is one such wait.
func BenchmarkW5_crowd(b *testing.B) {
	const crowd, wait = 200, 10 * time.Second
	srv := startServer(b)
	for _, m := range []mode{advisoryMode, leaseMode, rowMode} {
		b.Run(m.name, func(b *testing.B) {
			holder := lockerOn(b, m, connect(b, srv.URL()), locker.DefaultTTL)
			admin := connect(b, srv.URL())
			n := &metered{}
			l := lockerOn(b, m, connect(b, srv.URL(), n.use), locker.DefaultTTL)
			require.NoError(b, takeAndGive(context.Background(), l, "warm"))
			conns := n.conns.Load()
			var statements, drained float64
			var most int64
			for b.Loop() {
				held, err := holder.Acquire(context.Background(), "k")
				require.NoError(b, err)
				before := n.statements.Load()
				var wg sync.WaitGroup
				for range crowd {
					wg.Go(func() { _ = takeAndGive(context.Background(), l, "k") })
				}
				require.Eventually(b, func() bool { return value[int](b, admin, restingWaiters) == 1 }, soon, time.Millisecond)
				time.Sleep(wait) // what is measured is what happens in this time
				statements += float64(n.statements.Load() - before)
				most = max(most, n.conns.Load())
				start := time.Now()
				_ = held.Release(context.Background())
				wg.Wait()
				drained += float64(time.Since(start).Microseconds()) / 1000
				require.Eventually(b, func() bool { return value[int](b, admin, restingWaiters) == 0 }, soon, 10*time.Millisecond)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(statements/float64(b.N)/wait.Seconds(), "statements/s")
			b.ReportMetric(drained/float64(b.N), "ms-to-drain")
			b.ReportMetric(float64(most-conns), "connections-more")
		})
	}
}

// W6: 1,000 locks with a lease of 5 seconds are held. One operation is 10 seconds
// of that, after the first renewals have brought them together.
func BenchmarkW6_heldLocks(b *testing.B) {
	const locks, ttl, held = 1000, 5 * time.Second, 10 * time.Second
	srv := startServer(b)
	for _, m := range []mode{advisoryMode, leaseMode} {
		b.Run(m.name, func(b *testing.B) {
			n := &metered{}
			l := lockerOn(b, m, connect(b, srv.URL(), n.use), ttl)
			ctx := context.Background()
			require.NoError(b, takeAndGive(ctx, l, "warm"))
			goroutines := runtime.NumGoroutine()
			all := make([]locker.Lock, locks)
			for i := range all {
				k, err := l.Acquire(ctx, fmt.Sprint(i))
				require.NoError(b, err)
				all[i] = k
			}
			perLock := float64(runtime.NumGoroutine()-goroutines) / locks
			taken := n.statements.Load()
			require.Eventually(b, func() bool { return n.statements.Load() >= taken+4 }, 2*ttl, time.Millisecond)
			before := n.statements.Load()
			for b.Loop() {
				time.Sleep(held) // what is measured is what happens in this time
			}
			ticks := held.Seconds() * float64(b.N) / (ttl.Seconds() / 3)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(n.statements.Load()-before)/ticks, "statements/tick")
			b.ReportMetric(perLock, "goroutines/lock")
			b.ReportMetric(float64(n.conns.Load()), "connections")
			for _, k := range all {
				require.NoError(b, k.Err())
			}
		})
	}
}
