package locker_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

func TestRelease_worksUnderACancelledContext(t *testing.T) { // R2, C16
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		for _, l := range []locker.Locker{newMem(t, store, nil), newOver(t, newFaulty(store), nil)} {
			k := acquire(t, l, "k")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.NoError(t, k.Release(ctx))
			require.Zero(t, store.Len())
		}
	})
}

func TestRelease_twiceIsHarmless(t *testing.T) { // R1, C23
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		for _, l := range []locker.Locker{newMem(t, store, nil), newOver(t, newFaulty(store), nil)} {
			k := acquire(t, l, "k")
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if err := k.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			next := acquire(t, l, "k")
			require.NoError(t, k.Release(t.Context()))
			require.NoError(t, next.Err())
			requireHeld(t, newMem(t, store, nil), "k")
			require.NoError(t, next.Release(t.Context()))
		}
	})
}

func TestRelease_isBoundedOnAHungStore(t *testing.T) { // R2, C17
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		f.set(hang(stop), nil)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := k.Release(ctx)
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, locker.ErrLost)
		require.ErrorIs(t, k.Err(), locker.ErrReleased)

		err = k.Release(t.Context()) // joins the work, which runs on
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Error(t, err)
		require.NotErrorIs(t, err, locker.ErrLost)
		require.Equal(t, 1, f.count("release"))
		time.Sleep(locker.DefaultTTL)
		require.Zero(t, f.count("renew"), "renewal has stopped")
		close(stop)
		synctest.Wait()
	})
}

// A dead connection takes what is sent on it, and the client finds out by time-out.
func TestRelease_anAttemptThatHangsLeavesTimeForOthers(t *testing.T) { // R2, G4, C17
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		first := func(op string) fault {
			hung := false
			return func(ctx context.Context, now string) error {
				if now != op || hung {
					return nil
				}
				hung = true
				<-ctx.Done()
				return ctx.Err()
			}
		}
		f.set(first("release"), nil)
		start := time.Now()
		require.NoError(t, k.Release(t.Context()))
		require.Less(t, time.Since(start), 5*time.Second)
		require.Zero(t, store.Len())

		// An undo, too.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.set(first("release"), first("acquire"))
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, store.Len())
		time.Sleep(5 * time.Second)
		require.Zero(t, store.Len())
	})
}

func TestRelease_thatFailedIsReallyTriedAgain(t *testing.T) { // R2, C21, C24
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		f.set(only("release", fails(io.EOF)), nil)
		start := time.Now()
		err := k.Release(t.Context())
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, locker.ErrLost)
		require.InDelta(t, 5*time.Second, time.Since(start), float64(time.Millisecond))
		require.Greater(t, f.count("release"), 3)
		require.Equal(t, 1, store.Len())
		f.set(nil, nil)
		require.NoError(t, k.Release(t.Context()))
		require.Zero(t, store.Len())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestRelease_permanentErrorEndsItAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		noPerm := errors.New("NOPERM")
		f.set(only("release", fails(locker.Permanent(noPerm))), nil)
		start := time.Now()
		require.ErrorIs(t, k.Release(t.Context()), noPerm)
		require.Zero(t, time.Since(start))
		f.set(nil, nil)
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestRelease_whoseReplyWasLostIsNotALoss(t *testing.T) { // R1
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		first := true
		f.set(nil, only("release", func(context.Context, string) error {
			if first {
				first = false
				return io.EOF
			}
			return nil
		}))
		require.NoError(t, k.Release(t.Context()))
		require.Equal(t, 2, f.count("release"), "the second one finds the key gone")
	})
}

func TestRelease_afterALossSendsOneAttemptAndDoesNotWait(t *testing.T) { // R2
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		<-k.Done()
		f.set(hang(stop), nil)
		start := time.Now()
		for range 3 {
			require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
		}
		require.Zero(t, time.Since(start))
		synctest.Wait()
		require.Equal(t, 1, f.count("release"))
		close(stop)
	})
}

func TestRelease_comesAfterTheRenewalInFlight(t *testing.T) { // C36
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		var ended time.Time
		f.set(only("renew", func(context.Context, string) error {
			time.Sleep(200 * time.Millisecond)
			ended = time.Now()
			return nil
		}), nil)
		time.Sleep(ttl/3 + time.Millisecond) // a renewal is under way
		require.NoError(t, k.Release(t.Context()))
		require.Equal(t, ended, time.Now())
	})
}

func TestRelease_ofAHungStoreDoesNotStopTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		f.set(only("release", hang(stop)), nil)
		go func() { _ = k.Release(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		next := acquire(t, l, "k")
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
		f.set(nil, nil)
		close(stop)
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestRelease_ofALockThatTheStoreNoLongerHasIsErrLost(t *testing.T) { // R1
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		for name, before := range map[string]fault{
			"the first attempt":   nil,
			"after a refused one": only("release", first(2, fails(locker.NoEffect(io.EOF)))),
		} {
			k := acquire(t, l, "k")
			breakLock(t, store, k)
			require.NoError(t, k.Err(), "this locker does not know yet")
			f.set(before, nil)
			for range 2 {
				require.Equal(t, locker.ReasonExpired, lostReason(t, k.Release(t.Context())), name)
			}
			require.ErrorIs(t, k.Err(), locker.ErrReleased)
		}
	})
}

func TestRelease_afterTheStoreSaidNotYoursSendsNothing(t *testing.T) { // R2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, withTTL(ttl))
		k := acquire(t, l, "k")
		breakLock(t, store, k)
		taken(t, store, "k", time.Minute)
		<-k.Done()
		require.Equal(t, locker.ReasonTaken, lostReason(t, k.Err()))
		require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
		synctest.Wait()
		require.Zero(t, f.count("release"))
	})
}

func TestRelease_whoseReplyHangsIsNilTheSecondTime(t *testing.T) { // R1, R2
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		f.set(nil, only("release", hang(stop)))
		err := k.Release(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, locker.ErrLost)
		f.set(nil, nil)
		require.NoError(t, k.Release(t.Context()), "it is gone: the first one did it")
		require.Equal(t, 2, f.count("release"))
		close(stop)
	})
}

func TestRelease_thatHangsHoldsTheLineNoLongerThanTheLease(t *testing.T) { // W1
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, withTTL(time.Second))
		k := acquire(t, l, "k")
		f.set(only("release", hang(stop)), nil)
		start := time.Now()
		go func() { _ = k.Release(t.Context()) }()
		synctest.Wait()
		next := acquire(t, l, "k")
		require.InDelta(t, time.Second, time.Since(start), float64(50*time.Millisecond))
		close(stop)
		f.set(nil, nil)
		synctest.Wait()
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestClose_endsWaitersAndLocks(t *testing.T) { // House, C51
	synctest.Test(t, func(t *testing.T) {
		for _, remote := range []bool{false, true} {
			store := memlock.NewStore()
			var b locker.Backend = memlock.NewBackend(store)
			if remote {
				b = newFaulty(store)
			}
			l, err := locker.New(b, nil)
			require.NoError(t, err)
			var wg sync.WaitGroup
			for i := range 5 {
				key := string(rune('a' + i))
				obeys := i < 3
				k := acquire(t, l, key)
				wg.Go(func() {
					<-k.Done()
					if lostReason(t, k.Err()) != locker.ReasonClosed {
						t.Error(k.Err())
					}
					if obeys {
						if err := k.Release(context.Background()); !errors.Is(err, locker.ErrLost) {
							t.Error(err)
						}
					}
				})
				wg.Go(func() {
					_, err := l.Acquire(context.Background(), key)
					if !errors.Is(err, locker.ErrClosed) {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			require.NoError(t, l.Close(ctx))
			cancel()
			require.Equal(t, time.Second, time.Since(start), "it waits for those who do not release, until ctx ends")
			wg.Wait()
			require.Zero(t, store.Len())
			require.NoError(t, l.Close(t.Context()))
			_, err = l.TryAcquire(t.Context(), "a")
			require.ErrorIs(t, err, locker.ErrClosed)
			_, err = l.Acquire(t.Context(), "a")
			require.ErrorIs(t, err, locker.ErrClosed)
		}
	})
}

func TestClose_undoesAnAttemptInFlight(t *testing.T) { // C51, G4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l, err := locker.New(f, nil)
		require.NoError(t, err)
		f.set(nil, only("acquire", func(context.Context, string) error { time.Sleep(time.Second); return nil }))
		failed := make(chan error)
		go func() {
			_, err := l.Acquire(context.Background(), "k")
			failed <- err
		}()
		synctest.Wait()
		go func() { _ = l.Close(t.Context()) }()
		require.ErrorIs(t, <-failed, locker.ErrClosed)
		require.NoError(t, l.Close(t.Context()))
		require.Zero(t, store.Len())
	})
}

func TestClose_isBoundedOnAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l, err := locker.New(f, nil)
		require.NoError(t, err)
		acquire(t, l, "k")
		f.set(hang(stop), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err = l.Close(ctx)
		require.Equal(t, 6*time.Second, time.Since(start))
		require.Error(t, err)
		require.Equal(t, err, l.Close(t.Context()))
		close(stop)
		synctest.Wait()
	})
}

// ended is a context that has ended: to Close it means not to wait for holders.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestClose_repeatsWhatFailsAndSaysWhatItCouldNotGiveBack(t *testing.T) { // House
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		acquire(t, l, "k")
		f.set(only("release", first(3, fails(io.EOF))), nil)
		require.NoError(t, l.Close(ended()))
		require.Equal(t, 4, f.count("release"))
		require.Zero(t, store.Len())

		f = newFaulty(store)
		l = newOver(t, f, nil)
		acquire(t, l, "left behind")
		f.set(only("release", fails(locker.Permanent(io.EOF))), nil)
		err := l.Close(ended())
		require.ErrorIs(t, err, io.EOF)
		require.ErrorContains(t, err, "left behind")
		require.Equal(t, []string{"left behind"}, store.Keys())

		f = newFaulty(memlock.NewStore())
		l = newOver(t, f, nil)
		acquire(t, l, "left behind")
		f.set(only("release", fails(io.EOF)), nil)
		err = l.Close(ended())
		require.ErrorIs(t, err, io.EOF, "an error that passes, but not in time")
		require.ErrorContains(t, err, "left behind")
	})
}

func TestClose_isBoundedWhenADriverNeverReturns(t *testing.T) { // House
	for _, op := range []string{"acquire", "release", "renew", "extend"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stop := make(chan struct{})
				f := newFaulty(nil)
				l := newOver(t, f, withTTL(ttl))
				f.set(only(op, hang(stop)), nil)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if k, err := l.Acquire(ctx, "k"); err == nil {
					if op == "extend" {
						require.ErrorIs(t, k.Extend(ctx, time.Minute), context.DeadlineExceeded)
					}
					time.Sleep(10 * time.Second)
					_ = k.Release(ctx)
				}
				start := time.Now()
				err := l.Close(context.Background())
				require.Equal(t, 5*time.Second, time.Since(start))
				require.Error(t, err, "there may be something to give back still")
				close(stop)
			})
		})
	}
}

func TestClose_closesTheBackendLastAndOnce(t *testing.T) { // House
	synctest.Test(t, func(t *testing.T) {
		b := closing{newFaulty(nil)}
		l := newOver(t, b, nil)
		acquire(t, l, "k")
		broken := errors.New("broken pipe")
		b.set(func(ctx context.Context, op string) error {
			switch op {
			case "release":
				time.Sleep(time.Second)
				if b.count("close") > 0 {
					t.Error("closed before the release had its answer")
				}
			case "close":
				end, ok := ctx.Deadline()
				if ctx.Err() != nil || !ok || time.Until(end) != 5*time.Second {
					t.Errorf("five seconds to go, not until %v (%v)", end, ctx.Err())
				}
				return broken
			}
			return nil
		}, nil)
		for range 2 {
			err := l.Close(ended())
			require.ErrorIs(t, err, broken)
			le := (*locker.Error)(nil)
			require.ErrorAs(t, err, &le)
			require.Equal(t, "close", le.Op)
		}
		require.Equal(t, 1, b.count("close"))
	})
}

func TestClose_waitsForWhatALeaderGotAtThatMoment(t *testing.T) { // House, G4
	synctest.Test(t, func(t *testing.T) {
		for _, acquire := range []func(locker.Locker) (locker.Lock, error){
			func(l locker.Locker) (locker.Lock, error) { return l.Acquire(t.Context(), "k") },
			func(l locker.Locker) (locker.Lock, error) { return l.TryAcquire(t.Context(), "k") },
		} {
			store := memlock.NewStore()
			b := closing{newFaulty(store)}
			l := newOver(t, localClosing{b}, nil)
			closed := make(chan error, 1)
			b.set(only("release", func(context.Context, string) error {
				if b.count("close") > 0 {
					t.Error("the backend was closed before")
				}
				return nil
			}), only("acquire", func(context.Context, string) error {
				go func() { closed <- l.Close(ended()) }()
				synctest.Wait() // the store has granted, and Close is under way
				return nil
			}))
			_, err := acquire(l)
			require.ErrorIs(t, err, locker.ErrClosed)
			require.NoError(t, <-closed)
			require.Equal(t, 1, b.count("release"))
			require.Zero(t, store.Len())
		}
	})
}

// localClosing is a closing backend that is in this process.
type localClosing struct{ closing }

func (b localClosing) Info() locker.Info { return inProcess{b.faulty}.Info() }

// A store that is slow takes what is sent, and answers later than a first attempt waits.
func TestRelease_aSlowAnswerIsWaitedFor(t *testing.T) { // R2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		k := acquire(t, l, "k")
		f.set(func(ctx context.Context, _ string) error {
			select {
			case <-time.After(2 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil)
		require.NoError(t, k.Release(t.Context()))
		require.Zero(t, store.Len())
	})
}
