package locker_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

// waitFor starts an Acquire and gives its lock when there is one.
func waitFor(ctx context.Context, t *testing.T, l locker.Locker, key string, opts ...locker.Option) <-chan locker.Lock {
	got := make(chan locker.Lock, 1)
	go func() {
		k, err := l.Acquire(ctx, key, opts...)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		got <- k
	}()
	return got
}

func TestAcquire_isWokenByAWatchWhichIsClosedWithTheLastWaiter(t *testing.T) { // R3, W1, House
	synctest.Test(t, func(t *testing.T) {
		store, bell := memlock.NewStore(), newBell()
		a, b := newOver(t, newWaking(store, bell), nil), newOver(t, newWaking(store, bell), nil)
		k := acquire(t, a, "k")
		first := waitFor(t.Context(), t, b, "k")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		second := waitFor(ctx, t, b, "k")
		third := waitFor(ctx, t, b, "k")
		time.Sleep(time.Second)
		require.Equal(t, 1, bell.watched(), "W2: one for all who wait here")

		start := time.Now()
		require.NoError(t, k.Release(t.Context()))
		k = <-first
		require.Zero(t, time.Since(start))
		require.Equal(t, 1, bell.watched(), "there are waiters still")
		cancel()
		require.Nil(t, <-second)
		require.Nil(t, <-third)
		synctest.Wait()
		require.Zero(t, bell.watched())
		require.NoError(t, k.Release(t.Context()))

		k = acquire(t, a, "k")
		ctx, cancel = context.WithCancel(t.Context())
		alone := waitFor(ctx, t, b, "k")
		synctest.Wait()
		require.Equal(t, 1, bell.watched())
		cancel()
		require.Nil(t, <-alone)
		synctest.Wait()
		require.Zero(t, bell.watched(), "closed by a leader that leaves")

		alone = waitFor(t.Context(), t, b, "k")
		synctest.Wait()
		require.NoError(t, k.Release(t.Context()))
		k = <-alone
		require.Zero(t, bell.watched(), "closed by a leader that got the lock")
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestAcquire_asksAgainWhenItsWatchIsOn(t *testing.T) { // W1
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := newWaking(store, newBell())
		l := newOver(t, b, nil)
		remote := taken(t, store, "k", time.Minute)
		b.set(only("watch", func(ctx context.Context, _ string) error {
			return remote.Release(ctx) // just before the Watch is on: nobody rings
		}), nil)
		start := time.Now()
		k := acquire(t, l, "k")
		require.Zero(t, time.Since(start))
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestAcquire_doesNotWaitLongerThanTheLeaseForAWatchOrAPlace(t *testing.T) { // W1
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		w, q := newWaking(store, newBell()), newQueueing(store)
		w.set(only("watch", untilEnd), nil)
		q.set(only("enqueue", untilEnd), nil)
		for _, b := range []locker.Backend{w, q} {
			l := newOver(t, b, nil)
			taken(t, store, "k", time.Second)
			start := time.Now()
			k := acquire(t, l, "k")
			require.LessOrEqual(t, time.Since(start), 3*time.Second/2)
			require.NoError(t, k.Release(t.Context()))
		}
	})
}

func TestAcquire_withoutWakeUpsLooksAtTheStore(t *testing.T) { // W1, W4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		for _, err := range []error{io.EOF, locker.Permanent(io.EOF)} {
			w := newWaking(store, newBell())
			w.set(only("watch", fails(err)), nil)
			l := newOver(t, w, nil)
			remote := taken(t, store, "k", time.Minute)
			got := waitFor(t.Context(), t, l, "k")
			time.Sleep(10 * time.Second)
			if errors.Is(err, locker.Permanent(io.EOF)) {
				require.Equal(t, 1, w.count("watch"), "it will not get better")
			}
			require.LessOrEqual(t, w.count("acquire"), 30)
			require.NoError(t, remote.Release(t.Context()))
			start := time.Now()
			k := <-got
			require.LessOrEqual(t, time.Since(start), time.Second)
			require.NoError(t, k.Release(t.Context()))
		}
	})
}

func TestTryAcquire_inAnOutageForgetsWhatTheStoreSaidBefore(t *testing.T) { // G7
	// A Watch has just come on, or rung, and the leader's next attempt has no answer.
	for name, wakes := range map[string]bool{"watching": false, "woken": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, bell := memlock.NewStore(), newBell()
				b := newWaking(store, bell)
				l := newOver(t, b, nil)
				taken(t, store, "k", time.Minute)
				outage := func() { b.set(only("acquire", untilEnd), nil) }
				if !wakes {
					b.set(only("watch", func(context.Context, string) error { outage(); return nil }), nil)
				}
				ctx, cancel := context.WithCancel(t.Context())
				got := waitFor(ctx, t, l, "k")
				synctest.Wait()
				if wakes {
					requireHeld(t, l, "k")
					outage()
					bell.ring("k")
				}
				time.Sleep(time.Millisecond) // the call is newer than the last answer
				try, cancelTry := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancelTry()
				_, err := l.TryAcquire(try, "k")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, locker.ErrHeld)
				cancel()
				require.Nil(t, <-got)
			})
		})
	}
}

func TestTryAcquire_isNotToldHeldForLongerThanTheLease(t *testing.T) { // G7
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := newWaking(store, newBell())
		l := newOver(t, b, nil)
		taken(t, store, "k", time.Second)
		b.set(only("watch", func(context.Context, string) error {
			b.set(untilEnd, nil) // an outage of everything
			return nil
		}), nil)
		ctx, cancel := context.WithCancel(t.Context())
		got := waitFor(ctx, t, l, "k")
		time.Sleep(10 * time.Minute)
		try, cancelTry := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancelTry()
		_, err := l.TryAcquire(try, "k")
		require.Error(t, err)
		require.NotErrorIs(t, err, locker.ErrHeld)
		cancel()
		require.Nil(t, <-got)
	})
}

func TestAcquire_takesItsTurnInTheStoresLine(t *testing.T) { // W5, R3, CapFIFO
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		k := acquire(t, newOver(t, newQueueing(store), nil), "k")
		var waiting []<-chan locker.Lock
		var lockers []queueing
		for range 5 {
			q := newQueueing(store)
			lockers = append(lockers, q)
			waiting = append(waiting, waitFor(t.Context(), t, newOver(t, q, nil), "k"))
			synctest.Wait()
		}
		start := time.Now()
		for _, next := range waiting {
			require.NoError(t, k.Release(t.Context()))
			k = <-next
		}
		require.Zero(t, time.Since(start))
		require.NoError(t, k.Release(t.Context()))
		for _, q := range lockers {
			require.Equal(t, 1, q.count("enqueue"))
		}
		require.Zero(t, store.Len())
	})
}

func TestAcquire_thatIsCancelledLeavesTheStoresLine(t *testing.T) { // W3, W5
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		q := newQueueing(store)
		l := newOver(t, q, nil)
		k := acquire(t, l, "other")
		remote := taken(t, store, "k", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		got := waitFor(ctx, t, l, "k")
		synctest.Wait()
		q.set(only("leave", first(3, fails(io.EOF))), nil)
		cancel()
		require.Nil(t, <-got)
		time.Sleep(time.Second)
		require.Equal(t, 4, q.count("leave"), "repeated until it is done")
		require.NoError(t, remote.Release(t.Context()))
		require.Equal(t, []string{"other"}, store.Keys())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestAcquire_aClaimWithoutAnswerGivesUpItsPlace(t *testing.T) { // G4, W5
	// The place is known by its owner, and so is what the claim may have taken: its
	// undo must not meet the next claim.
	for name, unanswered := range map[string]fault{
		"abandoned": first(1, takes(10*time.Second)),
		"failed":    first(1, fails(io.EOF)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				q := newQueueing(store)
				l := newOver(t, q, nil)
				remote := taken(t, store, "k", time.Minute)
				got := waitFor(t.Context(), t, l, "k")
				synctest.Wait()
				q.set(only("claim", unanswered), nil)
				require.NoError(t, remote.Release(t.Context()))
				k := <-got
				require.NotContains(t, q.owners()[:1], k.Owner())
				synctest.Wait()
				require.Equal(t, len(q.owners()), q.count("leave"))
				time.Sleep(20 * time.Second) // whatever was on its way has arrived
				require.NoError(t, k.Err())
				require.Equal(t, k.Owner(), shown(t, store, "k").Holder)
				require.NoError(t, k.Release(t.Context()))
				time.Sleep(5 * time.Second)
				require.Zero(t, store.Len())
			})
		})
	}
}

func TestAcquire_afterAGrantThatCameTooLateIsNotHeld(t *testing.T) { // G6, G8
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, withTTL(500*time.Millisecond))
		taken(t, store, "k", time.Second)
		f.set(nil, only("acquire", takes(490*time.Millisecond)))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, locker.ErrHeld, "it was, but the last definite answer was a grant")
		time.Sleep(time.Second)
		require.Zero(t, store.Len())
	})
}
