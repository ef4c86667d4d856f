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

func TestExtend_makesTheRenewalUnderWayALateOne(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(time.Minute))
		k := acquire(t, l, "k")
		f.set(nil, only("renew", first(1, takes(2*time.Second))))
		time.Sleep(20*time.Second + 500*time.Millisecond) // the store has the renewal, we have no answer
		require.NoError(t, k.Extend(t.Context(), 9*time.Second))
		short := k.Deadline()
		require.Equal(t, 8750*time.Millisecond, time.Until(short))
		time.Sleep(2 * time.Second) // now we have
		synctest.Wait()
		require.Equal(t, 1, f.count("renew"))
		require.Equal(t, short, k.Deadline(), "the renewal is older at the store than the Extend")
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestExtend_thatIsToldNotYoursLosesTheLock(t *testing.T) { // H3
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l := newOver(t, newFaulty(store), withTTL(time.Minute))
		k := acquire(t, l, "k")
		breakLock(t, store, k)
		require.NoError(t, k.Err(), "this locker does not know yet")
		require.ErrorIs(t, k.Extend(t.Context(), time.Hour), locker.ErrLost)
		require.True(t, isDone(k))
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		requireFree(t, l, "k")
	})
}

func TestExtend_withoutAnAnswerLimitsLaterLongerOnes(t *testing.T) { // G1, H2
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k", locker.WithoutRenewal())
		f.set(only("extend", first(1, func(context.Context, string) error { <-stop; return nil })), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, k.Extend(ctx, time.Minute), context.DeadlineExceeded)
		require.NoError(t, k.Extend(t.Context(), time.Hour))
		close(stop) // the first one reaches the store after the second one
		synctest.Wait()
		require.Equal(t, time.Minute, shown(t, store, "k").Remaining)
		require.Less(t, time.Until(k.Deadline()), time.Minute)
		next := acquire(t, newMem(t, store, nil), "k")
		require.ErrorIs(t, k.Err(), locker.ErrLost, "before the next one has it")
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestExtend_thatWasRefusedLimitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		f.set(only("extend", first(1, fails(locker.NoEffect(io.EOF)))), nil)
		require.ErrorIs(t, k.Extend(t.Context(), time.Minute), io.EOF)
		require.NoError(t, k.Extend(t.Context(), time.Hour))
		require.Equal(t, time.Hour-250*time.Millisecond, time.Until(k.Deadline()))
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestExtend_endsWithItsContextAndWithTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		f.set(only("extend", hang(stop)), nil)
		cause := errors.New("user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		start := time.Now()
		err := k.Extend(ctx, time.Minute)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, k.Extend(ctx, time.Minute), cause, "at once")
		require.Equal(t, locker.ReasonExpired, lostReason(t, k.Extend(t.Context(), time.Minute)))
		require.Equal(t, ttl-150*time.Millisecond, time.Since(start))
		require.Equal(t, 2, f.count("extend"))
		close(stop)
	})
}

func TestExtend_outlastsARenewalThatWasSentMeanwhile(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		f.set(nil, func(_ context.Context, op string) error {
			switch op {
			case "extend": // sent before the renewal, answered before it
				time.Sleep(700 * time.Millisecond)
			case "renew":
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		})
		time.Sleep(ttl / 6)
		require.NoError(t, k.Extend(t.Context(), time.Minute))
		time.Sleep(time.Second)
		require.Equal(t, time.Minute, k.TTL())
		require.Equal(t, 1, f.count("renew"))
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestExtend_thatShortensWhatIsLeftCountsBeforeItsAnswer(t *testing.T) { // H1, H2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		f.renewed = func(locker.Lease) locker.Lease { return locker.Lease{TTL: ttl / 3} }
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		time.Sleep(ttl/3 + time.Millisecond) // renewed: the TTL is shorter than what is left
		f.set(nil, only("extend", fails(io.EOF)))
		require.ErrorIs(t, k.Extend(t.Context(), ttl/2), io.EOF)
		require.Less(t, time.Until(k.Deadline()), shown(t, store, "k").Remaining)
		require.NoError(t, k.Release(t.Context()))
	})
}
