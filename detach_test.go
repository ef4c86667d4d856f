package locker_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

// traced is a context with a value, as tracing uses it.
func traced(ctx context.Context) context.Context {
	return context.WithValue(ctx, traceKey{}, "trace")
}

type traceKey struct{}

// requireDetached is a fault that checks the context of a release: alive, bounded,
// and with the values of its caller's.
func requireDetached(t *testing.T) fault {
	return func(ctx context.Context, _ string) error {
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > 5*time.Second {
			t.Error("not bounded")
		}
		if ctx.Value(traceKey{}) != "trace" {
			t.Error("its values are lost")
		}
		return ctx.Err()
	}
}

func TestUndo_outlivesItsCaller(t *testing.T) { // G4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		f.set(only("release", requireDetached(t)), only("acquire", takes(400*time.Millisecond)))
		ctx, cancel := context.WithTimeout(traced(t.Context()), 200*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		require.Zero(t, store.Len())
		require.Equal(t, 1, f.count("release"))
	})
}

func TestUndo_isRepeatedAfterAnError(t *testing.T) { // G4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		f.set(only("release", first(3, fails(io.EOF))), only("acquire", first(1, fails(io.EOF))))
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, io.EOF)
		time.Sleep(time.Second)
		require.Zero(t, store.Len())
		require.Equal(t, 4, f.count("release"))
	})
}

func TestUndo_endsAfterFiveSeconds(t *testing.T) { // G4: the TTL is the last resort
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, withTTL(10*time.Second))
		f.set(only("release", fails(io.EOF)), only("acquire", fails(io.EOF)))
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, io.EOF)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		tried := f.count("release")
		require.LessOrEqual(t, tried, 30)
		require.Equal(t, 1, store.Len())
		time.Sleep(5 * time.Second)
		require.Equal(t, tried, f.count("release"))
		require.Zero(t, store.Len())
	})
}

func TestRelease_outlivesItsCaller(t *testing.T) { // R2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		f.set(only("release", requireDetached(t)), nil)
		k := acquire(t, l, "k")
		ctx, cancel := context.WithCancel(traced(t.Context()))
		cancel()
		require.NoError(t, k.Release(ctx))
		require.Zero(t, store.Len())
	})
}

func TestRenewal_isBoundedByAThirdOfWhatRemains(t *testing.T) { // H1
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		var bound atomic.Int64
		f.set(only("renew", func(ctx context.Context, _ string) error {
			end, _ := ctx.Deadline()
			bound.Store(int64(time.Until(end)))
			return nil
		}), nil)
		left := time.Until(k.Deadline()) - ttl/3
		time.Sleep(ttl/3 + time.Millisecond)
		require.Equal(t, left/3, time.Duration(bound.Load()))
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestRenewal_ofAShortLockDoesNotCutThatOfALongOneShort(t *testing.T) { // H3
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		f.set(func(ctx context.Context, _ string) error { // a round trip of 8 ms, which ends with ctx
			select {
			case <-time.After(8 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil)
		l := newOver(t, f, nil)
		long := acquire(t, l, "long", locker.WithTTL(ttl))
		ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
		defer cancel()
		for i := range 40 {
			go func() { // short locks come and go all the time
				for n := i; ctx.Err() == nil; n++ {
					if k, err := l.Acquire(ctx, string(rune('A'+i)), locker.WithTTL(40*time.Millisecond)); err == nil {
						time.Sleep(time.Duration(10+n*7%30) * time.Millisecond)
						_ = k.Release(ctx)
					}
				}
			}()
		}
		<-ctx.Done()
		require.NoError(t, long.Err())
		time.Sleep(time.Second) // the others end
	})
}
