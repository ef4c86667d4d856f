package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, store *memlock.Store) locker.Locker {
	t.Helper()
	l, err := memlock.New(store, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func TestStore_forgetsKeysThatNobodyNeeds(t *testing.T) { // C123
	store := memlock.NewStore()
	l := open(t, store)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	cycle := func(from, n int) {
		for i := range n {
			key := fmt.Sprint("k", from+i)
			k, err := l.Acquire(t.Context(), key)
			require.NoError(t, err)
			if i%10 == 0 { // a wait that is cancelled
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				_, err := l.Acquire(ctx, key)
				require.ErrorIs(t, err, context.Canceled)
			}
			require.NoError(t, k.Release(t.Context()))
		}
	}
	cycle(0, 1000)
	before := heap()
	cycle(1000, 20_000)
	require.Zero(t, store.Len())
	require.Less(t, heap(), before+1<<20)
}

func TestStore_forgetsLocksThatWereLeftToExpire(t *testing.T) { // C72, C123
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l := open(t, store)
		for i := range 100 {
			_, err := l.Acquire(t.Context(), fmt.Sprint(i), locker.WithTTL(time.Duration(i+1)*time.Second), locker.WithoutRenewal())
			require.NoError(t, err)
		}
		require.Len(t, store.Keys(), 100)
		time.Sleep(50 * time.Second)
		require.Len(t, store.Keys(), 50)
		time.Sleep(51 * time.Second)
		require.Empty(t, store.Keys())
	})
}

func TestStore_neverHasTwoHoldersOfAKey(t *testing.T) { // G1, C124
	store := memlock.NewStore()
	lockers := []locker.Locker{open(t, store), open(t, store), open(t, store)}
	const keys = 4
	var holders [keys]atomic.Int32
	var last [keys]uint64
	var wg sync.WaitGroup
	for g := range 48 {
		rnd := rand.New(rand.NewPCG(1, uint64(g)))
		wg.Go(func() {
			for range 200 {
				i := rnd.IntN(keys)
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(2000))*time.Microsecond)
				k, err := lockers[g%len(lockers)].Acquire(ctx, fmt.Sprint(i))
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					continue
				}
				if holders[i].Add(1) != 1 {
					t.Error("two holders")
				}
				if k.Token() <= last[i] {
					t.Errorf("token %d after %d", k.Token(), last[i])
				}
				last[i] = k.Token()
				holders[i].Add(-1)
				if err := k.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, store.Len())
}

func TestStore_servesLockersInTheOrderOfTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		first, err := open(t, store).Acquire(t.Context(), "k")
		require.NoError(t, err)
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			l := open(t, store)
			wg.Go(func() {
				k, err := l.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		require.NoError(t, first.Release(t.Context()))
		_, err = open(t, store).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrHeld, "kept for the first in line")
		wg.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, order)
		require.Zero(t, store.Len())
	})
}

func TestBackend_aTurnThatIsNotClaimedIsPassedOn(t *testing.T) { // W5, C56
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := memlock.NewBackend(store)
		queue := b.(locker.Queuer)
		req := func(owner string) locker.Request {
			return locker.Request{Key: "k", Owner: owner, TTL: time.Minute}
		}
		held, err := b.TryAcquire(t.Context(), req("holder"))
		require.NoError(t, err)
		dead, err := queue.Enqueue(t.Context(), req("dead"))
		require.NoError(t, err)
		alive, err := queue.Enqueue(t.Context(), req("alive"))
		require.NoError(t, err)

		start := time.Now()
		require.NoError(t, held.Release(t.Context()))
		<-dead.Turn()
		_, err = alive.Claim(t.Context())
		he := (*locker.HeldError)(nil)
		require.ErrorAs(t, err, &he)
		require.Equal(t, "dead", he.Holder, "the reservation shows the waiter")
		require.LessOrEqual(t, he.Remaining, time.Second)
		<-alive.Turn()
		require.Equal(t, time.Second, time.Since(start), "a dead waiter costs its reservation, not the TTL")
		g, err := alive.Claim(t.Context())
		require.NoError(t, err)
		require.Greater(t, g.Token(), held.Token())
		require.Equal(t, time.Minute, g.Lease().TTL)
		require.NoError(t, alive.Leave(t.Context()))

		_, err = dead.Claim(t.Context()) // it wakes up, and stands at the end
		require.ErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, g.Release(t.Context()))
		<-dead.Turn()
		g, err = dead.Claim(t.Context())
		require.NoError(t, err)
		require.NoError(t, g.Release(t.Context()))
		require.Zero(t, store.Len())
	})
}

func TestBackend_aLeavingWaiterPassesItsTurnOn(t *testing.T) { // W5, W3
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := memlock.NewBackend(store)
		queue := b.(locker.Queuer)
		held, err := b.TryAcquire(t.Context(), locker.Request{Key: "k", Owner: "holder", TTL: time.Minute})
		require.NoError(t, err)
		leaves, err := queue.Enqueue(t.Context(), locker.Request{Key: "k", Owner: "leaves", TTL: time.Minute})
		require.NoError(t, err)
		next, err := queue.Enqueue(t.Context(), locker.Request{Key: "k", Owner: "next", TTL: time.Minute})
		require.NoError(t, err)
		require.NoError(t, held.Release(t.Context()))
		<-leaves.Turn()
		start := time.Now()
		require.NoError(t, leaves.Leave(t.Context()))
		<-next.Turn()
		require.Zero(t, time.Since(start))
		require.NoError(t, next.Leave(t.Context()))
		require.Zero(t, store.Len())
	})
}

func TestBackend_refusesModesItLacks(t *testing.T) {
	b := memlock.NewBackend(nil)
	for _, mode := range []locker.Mode{locker.ModeShared, locker.ModeLimited} {
		req := locker.Request{Key: "k", Owner: "x", TTL: time.Second, Mode: mode, Limit: 1}
		g, err := b.TryAcquire(t.Context(), req)
		require.Nil(t, g)
		require.ErrorIs(t, err, locker.ErrUnsupported)
		p, err := b.(locker.Queuer).Enqueue(t.Context(), req)
		require.Nil(t, p)
		require.ErrorIs(t, err, locker.ErrUnsupported)
	}
}

func TestBackend_aRenewalNeverShortensAndAnExtendDoes(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		b := memlock.NewBackend(nil)
		g, err := b.TryAcquire(t.Context(), locker.Request{Key: "k", Owner: "x", TTL: time.Minute})
		require.NoError(t, err)
		_, err = g.Renew(t.Context(), time.Second)
		require.NoError(t, err)
		shown, err := b.(locker.Inspector).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, locker.Holding{Holder: "x", Remaining: time.Minute, Token: g.Token()}, shown)
		_, err = b.(locker.Extender).Extend(t.Context(), g, time.Second)
		require.NoError(t, err)
		shown, err = b.(locker.Inspector).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, time.Second, shown.Remaining)
	})
}

func TestList_whileOthersTakeAndRelease(t *testing.T) {
	store := memlock.NewStore()
	b := memlock.NewBackend(store)
	kept := make(map[string]bool)
	for i := range 100 {
		key := fmt.Sprint("kept ", i)
		_, err := b.TryAcquire(t.Context(), locker.Request{Key: key, Owner: "x", TTL: time.Hour})
		require.NoError(t, err)
		kept[key] = true
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for n := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				req := locker.Request{Key: fmt.Sprint(n, " ", i%500), Owner: "y", TTL: time.Hour}
				if g, err := b.TryAcquire(context.Background(), req); err == nil && i%3 > 0 {
					_ = g.Release(context.Background())
				}
			}
		})
	}
	for range 50 {
		seen := make(map[string]int)
		require.NoError(t, b.(locker.Inspector).List(t.Context(), func(key string, h locker.Holding) bool {
			seen[key]++
			return true
		}))
		for key := range kept {
			require.Equal(t, 1, seen[key])
		}
	}
	close(stop)
	wg.Wait()
	require.Panics(t, func() { // and leaves the store usable
		_ = b.(locker.Inspector).List(t.Context(), func(string, locker.Holding) bool { panic("in yield") })
	})
	require.NotZero(t, store.Len())
}
