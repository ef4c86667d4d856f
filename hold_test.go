package locker_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

const ttl = 3 * time.Second

func withTTL(d time.Duration) *locker.Config { return &locker.Config{TTL: d} }

func lostReason(t *testing.T, err error) locker.Reason {
	t.Helper()
	le := (*locker.LostError)(nil)
	require.ErrorAs(t, err, &le)
	require.ErrorIs(t, err, locker.ErrLost)
	require.NotErrorIs(t, err, locker.ErrReleased)
	return le.Reason
}

func TestLock_isRenewedUntilReleased(t *testing.T) { // H1, G2, C39, C114
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l, other := newMem(t, store, withTTL(ttl)), newMem(t, store, nil)
		ctx, cancel := context.WithCancel(t.Context())
		k, err := l.Acquire(ctx, "k")
		require.NoError(t, err)
		cancel()
		for range 100 {
			time.Sleep(time.Second)
			require.NoError(t, k.Err())
			require.Greater(t, time.Until(k.Deadline()), ttl/2)
			requireHeld(t, other, "k")
		}
		require.NoError(t, k.Release(t.Context()))
		require.True(t, isDone(k))
		require.ErrorIs(t, k.Err(), locker.ErrReleased, "H4")
		requireFree(t, other, "k")
	})
}

func TestLock_withoutRenewalIsLostAtItsDeadline(t *testing.T) { // H2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l, other := newMem(t, store, withTTL(ttl)), newMem(t, store, nil)
		start := time.Now()
		k := acquire(t, l, "k", locker.WithoutRenewal())
		require.Equal(t, ttl-150*time.Millisecond, k.Deadline().Sub(start))
		<-k.Done()
		require.Equal(t, k.Deadline(), time.Now())
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		requireHeld(t, other, "k")
		taken := acquire(t, other, "k")
		require.GreaterOrEqual(t, time.Since(start), ttl)
		require.Greater(t, taken.Token(), k.Token())
		require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost, "R1, C18, C19")
		require.NoError(t, taken.Err())
		requireHeld(t, l, "k")
	})
}

func TestLock_marginIsAFractionOfTheTTLWithinBounds(t *testing.T) { // H2
	synctest.Test(t, func(t *testing.T) {
		l := newMem(t, nil, nil)
		for ttl, margin := range map[time.Duration]time.Duration{
			time.Millisecond:       250 * time.Microsecond,
			20 * time.Millisecond:  5 * time.Millisecond,
			40 * time.Millisecond:  5 * time.Millisecond,
			2 * time.Second:        100 * time.Millisecond,
			time.Minute:            250 * time.Millisecond,
			locker.MaxTTL:          250 * time.Millisecond,
			100 * time.Millisecond: 5 * time.Millisecond,
		} {
			k := acquire(t, l, "k", locker.WithTTL(ttl))
			require.Equal(t, ttl, k.TTL())
			require.Equal(t, ttl-margin, time.Until(k.Deadline()), "%v", ttl)
			require.NoError(t, k.Release(t.Context()))
		}
	})
}

func TestLock_errComparesTheClockWhenCalled(t *testing.T) { // H2, C46
	// In real time, so that the timer of the loss can be late, as after a pause.
	l := newMem(t, nil, nil)
	for range 200 {
		k := acquire(t, l, "k", locker.WithTTL(time.Millisecond), locker.WithoutRenewal())
		for end := k.Deadline(); time.Now().Before(end); {
		}
		require.ErrorIs(t, k.Err(), locker.ErrLost)
		require.True(t, isDone(k))
	}
}

func TestLock_isLostAtItsDeadlineWhileARenewalHangs(t *testing.T) { // H2, C31, C32
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		f.set(hang(stop), nil)
		start := time.Now()
		<-k.Done()
		require.Equal(t, ttl-150*time.Millisecond, time.Since(start))
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		require.Equal(t, 2, f.count("renew"), "H1: at most two in flight")
		close(stop)
	})
}

func TestLock_ignoresALateAnswer(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		first := k.Deadline()
		var quick atomic.Bool
		f.set(nil, only("renew", func(context.Context, string) error {
			if !quick.Swap(true) {
				time.Sleep(time.Second) // longer than a third of what remains
			}
			return nil
		}))
		time.Sleep(ttl/3 + 700*time.Millisecond)
		require.Greater(t, k.Deadline(), first, "the second attempt counted")
		second := k.Deadline()
		time.Sleep(400 * time.Millisecond)
		require.Equal(t, second, k.Deadline(), "the first one's answer came late")
		require.Equal(t, 2, f.count("renew"))
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestLock_survivesRenewalErrorsThatPass(t *testing.T) { // H3, C30
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		time.Sleep(900 * time.Millisecond)
		f.set(fails(io.ErrUnexpectedEOF), nil)
		time.Sleep(700 * time.Millisecond)
		f.set(nil, nil)
		time.Sleep(10 * time.Second)
		require.NoError(t, k.Err())
		require.Greater(t, f.count("renew"), 4)
		f.set(fails(io.ErrUnexpectedEOF), nil)
		<-k.Done()
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		require.ErrorIs(t, k.Err(), io.ErrUnexpectedEOF, "the loss says what preceded it")
		f.set(nil, nil)
	})
}

func TestLock_notYoursIsALossAtOnce(t *testing.T) { // H3, C28, C29, C33
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, withTTL(ttl))
		operator := newMem(t, store, nil).(locker.Inspector)
		k := acquire(t, l, "k")
		start := time.Now()
		done, err := operator.ForceRelease(t.Context(), "k", "somebody else")
		require.NoError(t, err)
		require.False(t, done)
		done, err = operator.ForceRelease(t.Context(), "k", k.Owner())
		require.NoError(t, err)
		require.True(t, done)
		<-k.Done()
		require.Equal(t, ttl/3, time.Since(start), "at the next renewal")
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		require.Zero(t, store.Len(), "it is not re-created")

		k = acquire(t, l, "k")
		_, err = operator.ForceRelease(t.Context(), "k", k.Owner())
		require.NoError(t, err)
		taken, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrHeld, "this locker does not know yet")
		require.Nil(t, taken)
		taken = acquire(t, operator.(locker.Locker), "k", locker.WithTTL(10*time.Second))
		<-k.Done()
		require.Equal(t, locker.ReasonTaken, lostReason(t, k.Err()))
		require.ErrorIs(t, k.Extend(t.Context(), time.Minute), locker.ErrLost)
		require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
		require.NoError(t, taken.Err())
	})
}

func TestLock_pushedLossIsSeenAtOnce(t *testing.T) { // H5
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l := newMem(t, store, nil)
		k := acquire(t, l, "k")
		_, err := newMem(t, store, nil).(locker.Inspector).ForceRelease(t.Context(), "k", k.Owner())
		require.NoError(t, err)
		require.True(t, isDone(k))
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		requireFree(t, l, "k") // C49: the locker goes on
	})
}

func TestLock_endsAtMaxHold(t *testing.T) { // H3, C48
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l := newMem(t, store, withTTL(ttl))
		start := time.Now()
		k := acquire(t, l, "k", locker.WithMaxHold(10*time.Second))
		require.False(t, k.Deadline().After(start.Add(10*time.Second)))
		<-k.Done()
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, locker.ReasonMaxHold, lostReason(t, k.Err()))
		k2 := acquire(t, newMem(t, store, nil), "k")
		require.LessOrEqual(t, time.Since(start), 10*time.Second+ttl)
		require.NoError(t, k2.Release(t.Context()))

		k = acquire(t, l, "k", locker.WithMaxHold(10*time.Second))
		<-k.Done()
		require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
		require.Zero(t, store.Len(), "R2: a release after the loss frees the key")
	})
}

func TestLock_extendSetsTheLease(t *testing.T) { // C43, C44
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l := newMem(t, store, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		for range 10 {
			require.NoError(t, k.Extend(t.Context(), 10*time.Second))
		}
		require.Equal(t, 10*time.Second, k.TTL())
		require.Equal(t, 9750*time.Millisecond, time.Until(k.Deadline()))
		require.NoError(t, k.Extend(t.Context(), time.Second))
		require.Equal(t, 950*time.Millisecond, time.Until(k.Deadline()))
		for _, bad := range []time.Duration{0, -time.Second, time.Nanosecond, locker.MaxTTL + 1} {
			require.ErrorIs(t, k.Extend(t.Context(), bad), locker.ErrInvalid)
		}
		require.NoError(t, k.Extend(t.Context(), 5*time.Second), "longer again: the store confirmed the shorter one")
		require.Equal(t, 4750*time.Millisecond, time.Until(k.Deadline()))
		require.Equal(t, 5*time.Second, requireHeld(t, newMem(t, store, nil), "k").Remaining)
		require.NoError(t, k.Release(t.Context()))
		require.ErrorIs(t, k.Extend(t.Context(), time.Second), locker.ErrReleased)
	})
}

func TestLock_extendSetsLaterRenewalsToo(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		require.NoError(t, k.Extend(t.Context(), time.Minute))
		time.Sleep(50 * time.Second)
		require.Equal(t, 2, f.count("renew"))
		require.NoError(t, k.Err())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestLock_aShorterExtendCountsBeforeAndWithoutItsAnswer(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(time.Minute))
		k := acquire(t, l, "k")
		f.set(only("extend", hang(stop)), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, k.Extend(ctx, time.Second), context.DeadlineExceeded)
		require.Less(t, time.Until(k.Deadline()), time.Second)
		f.set(nil, nil)
		require.NoError(t, k.Extend(t.Context(), time.Minute))
		require.Less(t, time.Until(k.Deadline()), time.Second, "the shorter one may still reach the store")
		require.Equal(t, time.Second, k.TTL())
		time.Sleep(10 * time.Second)
		require.NoError(t, k.Err(), "renewed within the shorter one")
		close(stop)
		synctest.Wait()
		time.Sleep(10 * time.Second)
		require.NoError(t, k.Err())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestLock_extendThatFailsLeavesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(time.Minute))
		k := acquire(t, l, "k")
		before := k.Deadline()
		f.set(only("extend", fails(io.EOF)), nil)
		require.ErrorIs(t, k.Extend(t.Context(), time.Hour), io.EOF)
		require.Equal(t, before, k.Deadline())
		require.Equal(t, time.Minute, k.TTL())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestLock_tinyTTLsAreRenewedInTime(t *testing.T) { // C40
	synctest.Test(t, func(t *testing.T) {
		l := newMem(t, nil, nil)
		k := acquire(t, l, "k", locker.WithTTL(time.Millisecond))
		time.Sleep(time.Second)
		require.NoError(t, k.Err())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestLock_thousandsAreRenewedInOneBatchAndNeedNoGoroutine(t *testing.T) { // C132, W6
	synctest.Test(t, func(t *testing.T) {
		b := &batches{faulty: newFaulty(nil)}
		l := newOver(t, b, withTTL(ttl))
		goroutines := runtime.NumGoroutine()
		keys := make([]locker.Lock, 1000)
		for i := range keys {
			keys[i] = acquire(t, l, string(rune('a'+i)))
			time.Sleep(time.Millisecond / 2)
		}
		time.Sleep(2*ttl + time.Millisecond)
		synctest.Wait()
		require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+10)
		b.take()
		time.Sleep(10 * ttl)
		sizes := b.take()
		require.LessOrEqual(t, len(sizes), 60, "one batch a tick, a tick is at least a sixth of the TTL")
		for _, n := range sizes {
			require.Equal(t, 1000, n)
		}
		for _, k := range keys {
			require.NoError(t, k.Err())
			require.NoError(t, k.Release(t.Context()))
		}
	})
}

// batches counts the batches of renewals.
type batches struct {
	*faulty
	sizes []int
}

func (b *batches) take() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	sizes := b.sizes
	b.sizes = nil
	return sizes
}

func (b *batches) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	b.mu.Lock()
	b.sizes = append(b.sizes, len(renewals))
	b.mu.Unlock()
	for i, r := range renewals {
		lease, err := r.Grant.Renew(ctx, r.TTL)
		answer(i, lease, err)
	}
}

func TestWithLock_endsWithTheLock(t *testing.T) { // H4
	synctest.Test(t, func(t *testing.T) {
		l := newMem(t, nil, nil)
		k := acquire(t, l, "k")
		ctx, cancel := locker.WithLock(t.Context(), k)
		defer cancel()
		require.NoError(t, ctx.Err())
		require.NoError(t, k.Release(t.Context()))
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), locker.ErrReleased)

		after, cancel := locker.WithLock(t.Context(), k)
		defer cancel()
		require.ErrorIs(t, context.Cause(after), locker.ErrReleased, "at once")

		k = acquire(t, l, "k", locker.WithoutRenewal())
		ctx, cancel = locker.WithLock(t.Context(), k)
		defer cancel()
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), locker.ErrLost)

		k = acquire(t, l, "k")
		ctx, cancel = locker.WithLock(t.Context(), k)
		cancel()
		<-ctx.Done()
		require.NoError(t, k.Err(), "cancel does not release")
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestDo_releasesWhateverHappens(t *testing.T) { // C26, C27
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		mine := errors.New("mine")
		run := func(fn func(context.Context, locker.Lock) error) error {
			return locker.Do(t.Context(), l, "k", fn)
		}
		require.NoError(t, run(func(ctx context.Context, k locker.Lock) error { return k.Err() }))
		require.ErrorIs(t, run(func(context.Context, locker.Lock) error { return mine }), mine)
		require.PanicsWithValue(t, "boom", func() {
			_ = run(func(context.Context, locker.Lock) error { panic("boom") })
		})
		require.Zero(t, store.Len())

		f.set(only("release", fails(io.EOF)), nil)
		err := run(func(context.Context, locker.Lock) error { return mine })
		require.ErrorIs(t, err, mine)
		require.ErrorIs(t, err, io.EOF)
		f.set(nil, nil)
		time.Sleep(locker.DefaultTTL)

		ran, err := locker.TryDo(t.Context(), l, "k", func(context.Context, locker.Lock) error {
			ran, err := locker.TryDo(t.Context(), l, "k", func(context.Context, locker.Lock) error { return mine })
			require.False(t, ran)
			require.ErrorIs(t, err, locker.ErrHeld)
			return nil
		})
		require.True(t, ran)
		require.NoError(t, err)

		err = locker.Do(t.Context(), l, "k", func(ctx context.Context, _ locker.Lock) error {
			<-ctx.Done() // ends with the lock
			return context.Cause(ctx)
		}, locker.WithMaxHold(time.Second))
		require.ErrorIs(t, err, locker.ErrLost)
	})
}
