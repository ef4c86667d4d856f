package locker_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

func TestAcquire_waitsUntilTheOtherLockerReleases(t *testing.T) { // G1, R3
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		a, b := newMem(t, store, nil), newMem(t, store, nil)
		k := acquire(t, a, "report")
		got := make(chan locker.Lock)
		start := time.Now()
		go func() {
			k, err := b.Acquire(t.Context(), "report")
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		time.Sleep(3 * time.Second)
		requireHeld(t, b, "report")
		require.NoError(t, k.Release(t.Context()))
		k2 := <-got
		require.Equal(t, 3*time.Second, time.Since(start), "woken by the release, not by a clock")
		require.Greater(t, k2.Token(), k.Token(), "G3")
		require.NotEqual(t, k2.Owner(), k.Owner())
		require.NoError(t, k2.Release(t.Context()))
		require.Zero(t, store.Len())
	})
}

func TestAcquire_servesLocalWaitersInOrder(t *testing.T) { // W2
	synctest.Test(t, func(t *testing.T) {
		l := newMem(t, nil, nil)
		first := acquire(t, l, "k")
		var (
			mu    sync.Mutex
			order []int
			wg    sync.WaitGroup
		)
		for i := range 20 {
			wg.Go(func() {
				k, err := l.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		require.NoError(t, first.Release(t.Context()))
		wg.Wait()
		require.IsIncreasing(t, order)
		require.Len(t, order, 20)
	})
}

func TestAcquire_isTakenOverWhenACrashedHoldersLeaseEnds(t *testing.T) { // W1, C53
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		crashed, err := memlock.NewBackend(store).TryAcquire(t.Context(), locker.Request{Key: "k", Owner: "x", TTL: 2 * time.Second})
		require.NoError(t, err)
		start := time.Now()
		k := acquire(t, newMem(t, store, nil), "k")
		require.InDelta(t, 2*time.Second, time.Since(start), float64(10*time.Millisecond))
		require.Greater(t, k.Token(), crashed.Token())
	})
}

func TestAcquire_withADeadContextTakesNothing(t *testing.T) { // G6, C03
	store := memlock.NewStore()
	f := newFaulty(store)
	l := newOver(t, f, nil)
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for range 1000 {
		for _, acquire := range []func(context.Context, string, ...locker.Option) (locker.Lock, error){l.Acquire, l.TryAcquire} {
			k, err := acquire(ctx, "k")
			require.Nil(t, k)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, cause)
			require.NotErrorIs(t, err, locker.ErrHeld)
			require.NotErrorIs(t, err, locker.ErrInvalid)
		}
	}
	require.Zero(t, f.count("acquire"), "nothing is sent")
	require.Zero(t, store.Len())
}

func TestAcquire_whoseWaitEndsSaysWhy(t *testing.T) { // G6, C05, C08
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		l, other := newMem(t, store, nil), newMem(t, store, nil)
		k := acquire(t, other, "remote", locker.WithLabel("night job"))
		local := acquire(t, l, "local")
		for key, holder := range map[string]string{"remote": k.Owner() + " night job", "local": local.Owner()} {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			start := time.Now()
			_, err := l.Acquire(ctx, key)
			cancel()
			require.Equal(t, 300*time.Millisecond, time.Since(start), "prompt")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, locker.ErrHeld)
			he := (*locker.HeldError)(nil)
			require.ErrorAs(t, err, &he)
			require.Equal(t, holder, he.Holder)
			le := (*locker.Error)(nil)
			require.ErrorAs(t, err, &le)
			require.Equal(t, "acquire", le.Op)
			require.Equal(t, key, le.Key)

			cause := errors.New("user left")
			cctx, cancelCause := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancelCause(cause) })
			_, err = l.Acquire(cctx, key)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, cause)
			require.ErrorIs(t, err, locker.ErrHeld)
		}
	})
}

func TestAcquire_inAnOutageIsNeverHeld(t *testing.T) { // G7, W4, C09, C15
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		f.set(fails(io.ErrUnexpectedEOF), nil)
		l := newOver(t, f, nil)
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NotErrorIs(t, err, locker.ErrHeld)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "joined with the driver's last error")
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.LessOrEqual(t, f.count("acquire"), 50, "at most a few attempts a second")
	})
}

func TestAcquire_waitsOutAnErrorThatPasses(t *testing.T) { // W4, C15
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		f.set(fails(io.ErrUnexpectedEOF), nil)
		l := newOver(t, f, nil)
		time.AfterFunc(5*time.Second, func() { f.set(nil, nil) })
		start := time.Now()
		k := acquire(t, l, "k")
		require.Less(t, time.Since(start), 7*time.Second)
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestAcquire_endsAtAPermanentError(t *testing.T) { // W4
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		noPerm := errors.New("NOPERM")
		f.set(fails(locker.Permanent(noPerm)), nil)
		l := newOver(t, f, nil)
		start := time.Now()
		_, err := l.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, noPerm)
		require.Zero(t, time.Since(start))
	})
}

func TestAcquire_abandonedInFlightIsUndone(t *testing.T) { // G4, C02
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		f.set(nil, only("acquire", func(context.Context, string) error {
			time.Sleep(400 * time.Millisecond) // the reply takes its time, whatever ctx says
			return nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 200*time.Millisecond, time.Since(start))
		require.Equal(t, 1, store.Len(), "the store granted it")
		time.Sleep(300 * time.Millisecond)
		require.Zero(t, store.Len(), "and it was given back")
	})
}

func TestAcquire_withoutReplyIsUndoneAndTriedAgain(t *testing.T) { // G4, C01
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		f.set(nil, only("acquire", fails(io.EOF)))
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, locker.ErrHeld)
		synctest.Wait()
		require.Zero(t, store.Len())

		time.AfterFunc(2*time.Second, func() { f.set(nil, nil) })
		k := acquire(t, l, "k")
		require.NoError(t, k.Err())
		time.Sleep(2 * time.Second) // no undo of an earlier attempt takes it away
		require.NoError(t, k.Err())
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestAcquire_undoThatOvertakesItsRequestAsksAgain(t *testing.T) { // G4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, lateLanding{f}, nil)
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, io.EOF)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, store.Len(), "the request landed after the first undo")
		time.Sleep(400 * time.Millisecond)
		require.Zero(t, store.Len())
	})
}

// lateLanding fails each acquire, whose request reaches the store 50 ms later.
type lateLanding struct{ *faulty }

func (b lateLanding) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	late := make(chan locker.Grant, 1)
	time.AfterFunc(50*time.Millisecond, func() {
		g, err := b.faulty.TryAcquire(context.WithoutCancel(ctx), req)
		if err == nil {
			late <- g
		}
	})
	return &lateGrant{late: late}, io.EOF
}

type lateGrant struct {
	locker.Grant
	late chan locker.Grant
}

func (g *lateGrant) Release(ctx context.Context) error {
	select {
	case landed := <-g.late:
		return landed.Release(ctx)
	default:
		return &locker.LostError{Reason: locker.ReasonExpired}
	}
}

func TestAcquire_aGrantThatComesTooLateIsNotHandedOut(t *testing.T) { // G8, C12
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, &locker.Config{TTL: 500 * time.Millisecond})
		slow := only("acquire", func(context.Context, string) error {
			time.Sleep(490 * time.Millisecond)
			return nil
		})
		f.set(nil, slow)
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrLost)
		le := (*locker.LostError)(nil)
		require.ErrorAs(t, err, &le)
		require.Equal(t, locker.ReasonExpired, le.Reason)
		synctest.Wait()
		require.Zero(t, store.Len(), "given back before it expired")

		time.AfterFunc(time.Second, func() { f.set(nil, nil) })
		k := acquire(t, l, "k")
		require.NoError(t, k.Err(), "Acquire tries again")
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestAcquire_returnsFromAHungStoreWhenItsContextEnds(t *testing.T) { // C06
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		f.set(hang(stop), nil)
		l := newOver(t, f, nil)
		for _, acquire := range []func(context.Context, string, ...locker.Option) (locker.Lock, error){l.Acquire, l.TryAcquire} {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			start := time.Now()
			_, err := acquire(ctx, "k")
			cancel()
			require.Equal(t, 300*time.Millisecond, time.Since(start))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, locker.ErrHeld)
		}
		close(stop)
	})
}

func TestAcquire_isNotStuckBehindAttemptsThatNeverReturn(t *testing.T) { // W1, W4
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, &locker.Config{TTL: 24 * time.Hour})
		var hangs atomic.Int32
		f.set(func(context.Context, string) error {
			if hangs.Add(1) <= 3 {
				<-stop
			}
			return nil
		}, nil)
		start := time.Now()
		k := acquire(t, l, "k")
		require.Equal(t, 15*time.Second, time.Since(start), "5 s for each attempt that hangs, whatever the TTL")
		require.NoError(t, k.Release(t.Context()))
		close(stop)
	})
}

func TestAcquire_cancelAndReleaseAtOnceLoseNoTurn(t *testing.T) { // W3, C04
	l := newMem(t, nil, nil)
	for range 2000 {
		holder := acquire(t, l, "k")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		started := make(chan struct{}, 2)
		wait := func(ctx context.Context) {
			started <- struct{}{}
			k, err := l.Acquire(ctx, "k")
			if (k == nil) == (err == nil) {
				t.Errorf("%v, %v", k, err)
			}
			if err == nil {
				err = k.Release(context.Background())
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		wg.Go(func() { wait(ctx) })
		<-started
		wg.Go(func() { wait(t.Context()) })
		<-started
		wg.Go(cancel)
		require.NoError(t, holder.Release(t.Context()))
		wg.Wait()
	}
	requireFree(t, l, "k")
}

func TestTryAcquire_doesNotOvertakeAndTakesTheLeadersAnswer(t *testing.T) { // W2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, nil)
		remote, err := memlock.NewBackend(store).TryAcquire(t.Context(), locker.Request{Key: "k", Owner: "them", TTL: time.Minute})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		got := waitFor(ctx, t, l, "k")
		synctest.Wait()
		sent := f.count("acquire")
		he := requireHeld(t, l, "k")
		require.Equal(t, "them", he.Holder)
		require.Equal(t, sent, f.count("acquire"), "the leader's answer is still valid: nothing is sent")

		// The leader's next attempt is under way: TryAcquire waits for its answer.
		under, answer := make(chan struct{}), make(chan error)
		f.set(only("acquire", first(1, func(context.Context, string) error {
			close(under)
			return <-answer
		})), nil)
		<-under
		sent = f.count("acquire")
		told := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := l.TryAcquire(t.Context(), "k")
				told <- err
			}()
		}
		synctest.Wait()
		require.Empty(t, told)
		answer <- io.ErrUnexpectedEOF
		for range 2 {
			err := <-told
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the slow answer")
			require.NotErrorIs(t, err, locker.ErrHeld)
		}
		require.Equal(t, sent, f.count("acquire"))

		cancel()
		require.Nil(t, <-got)
		require.NoError(t, remote.Release(t.Context()))
		requireFree(t, l, "k")
	})
}

func TestTryAcquire_isPromptBehindShortLocalHolds(t *testing.T) { // G5
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		f.set(takes(time.Millisecond), nil)
		l := newOver(t, f, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if k, err := l.Acquire(ctx, "k"); err == nil {
						_ = k.Release(t.Context())
					}
				}
			})
		}
		for range 100 {
			time.Sleep(300 * time.Microsecond)
			try, cancelTry := context.WithTimeout(t.Context(), 10*time.Millisecond)
			k, err := l.TryAcquire(try, "k")
			cancelTry()
			if err == nil {
				err = k.Release(t.Context())
			}
			if err != nil {
				require.ErrorIs(t, err, locker.ErrHeld)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
		}
		cancel()
		wg.Wait()
	})
}

func TestAcquire_reportsItsOwnContextAndNobodyElses(t *testing.T) { // G6, W2
	for name, driver := range map[string]fault{
		"the context's error": untilEnd,
		"another error": func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return io.ErrNoProgress
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for i := range 200 {
					f := newFaulty(nil)
					l := newOver(t, f, nil)
					f.set(only("acquire", first(1, driver)), nil)
					lead := l.Acquire
					if i%2 == 0 {
						lead = l.TryAcquire
					}
					cause := errors.New("user left")
					ctx, cancel := context.WithCancelCause(t.Context())
					own, other := make(chan error, 1), make(chan error, 1)
					go func() {
						_, err := lead(ctx, "k")
						own <- err
					}()
					synctest.Wait()
					go func() {
						k, err := l.TryAcquire(t.Context(), "k")
						if err == nil {
							err = k.Release(t.Context())
						}
						other <- err
					}()
					synctest.Wait()
					cancel(cause)
					err := <-own
					require.ErrorIs(t, err, context.Canceled)
					require.ErrorIs(t, err, cause)
					require.NotErrorIs(t, err, locker.ErrHeld)
					require.NoError(t, <-other)
				}
			})
		})
	}
}

func TestTryAcquire_whoseDriverSeesTheDeadlineFirstReportsTheContext(t *testing.T) { // G6
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, nil)
		for range 200 {
			cause := errors.New("too slow")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
			f.set(only("acquire", func(ctx context.Context, _ string) error {
				end, _ := ctx.Deadline()
				time.Sleep(time.Until(end))
				return io.ErrNoProgress
			}), nil)
			_, err := l.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, cause)
			cancel()
		}
	})
}

func TestAcquire_aBackendThatPanicsLeavesNoStuckLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, inProcess{f}, nil)
		for _, acquire := range []func(context.Context, string, ...locker.Option) (locker.Lock, error){l.Acquire, l.TryAcquire} {
			f.set(only("acquire", first(1, func(context.Context, string) error { panic("bug") })), nil)
			require.PanicsWithValue(t, "bug", func() { _, _ = acquire(t.Context(), "k") })
			requireFree(t, l, "k")
		}
	})
}

// inProcess is a faulty backend whose calls the core makes on the caller's
// goroutine.
type inProcess struct{ *faulty }

func (b inProcess) Info() locker.Info {
	i := b.faulty.Info()
	i.Local = true
	return i
}

func TestTryAcquire_aLossThatIsPushedBeforeTheGrantIsNotHandedOut(t *testing.T) { // H5
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := &pushing{faulty: newFaulty(store)}
		l := newOver(t, b, nil)
		b.set(nil, only("acquire", first(2, func(context.Context, string) error {
			b.report("k", "an older one", &locker.LostError{Reason: locker.ReasonExpired})
			b.report("k", shown(t, store, "k").Holder, &locker.LostError{Reason: locker.ReasonSession})
			b.report("k", "another older one", &locker.LostError{Reason: locker.ReasonExpired})
			return nil
		})))
		_, err := l.TryAcquire(t.Context(), "k")
		require.Equal(t, locker.ReasonSession, lostReason(t, err))
		synctest.Wait()
		require.Zero(t, store.Len(), "given back")
		k := acquire(t, l, "k")
		require.NoError(t, k.Err(), "Acquire tries again")
		require.Equal(t, 3, b.count("acquire"))
		require.NoError(t, k.Release(t.Context()))
	})
}

// pushing is a faulty backend that can push losses.
type pushing struct {
	*faulty
	report func(key, owner string, err error)
}

func (b *pushing) Info() locker.Info {
	i := b.faulty.Info()
	i.Can |= locker.CapPushLoss
	return i
}

func (b *pushing) OnLoss(report func(key, owner string, err error)) { b.report = report }

func TestTryAcquire_sharesTheAnswerOfAnAttemptUnderWay(t *testing.T) { // G5, W2
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(nil)
		l := newOver(t, f, nil)
		f.set(func(context.Context, string) error { time.Sleep(time.Second); return io.EOF }, nil)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				start := time.Now()
				_, err := l.TryAcquire(t.Context(), "k")
				if !errors.Is(err, io.EOF) || errors.Is(err, locker.ErrHeld) {
					t.Errorf("got %v", err)
				}
				if d := time.Since(start); d != time.Second {
					t.Errorf("took %v", d)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, f.count("acquire"))
	})
}

func TestAcquire_rejectsBadInputBeforeAnyIO(t *testing.T) { // K1, K2, C66, C67, C73, C75
	f := newFaulty(nil)
	l := newOver(t, f, nil)
	long := make([]byte, 513)
	for i := range long {
		long[i] = 'k'
	}
	for _, key := range []string{"", "a\x00b", "\xff\xfe", string(long)} {
		_, err := l.Acquire(t.Context(), key)
		require.ErrorIs(t, err, locker.ErrInvalid, "%q", key)
		_, err = l.TryAcquire(t.Context(), key)
		require.ErrorIs(t, err, locker.ErrInvalid, "%q", key)
	}
	for _, o := range []locker.Option{
		locker.WithTTL(0), locker.WithTTL(-time.Second), locker.WithTTL(time.Nanosecond),
		locker.WithTTL(999 * time.Microsecond), locker.WithTTL(locker.MaxTTL + 1),
		locker.WithLabel("a\nb"), locker.WithLabel("\xff"), locker.WithLabel(string(long[:129])),
		locker.WithMaxHold(0), locker.WithMaxHold(-1),
	} {
		_, err := l.Acquire(t.Context(), "k", o)
		require.ErrorIs(t, err, locker.ErrInvalid, "%+v", o)
	}
	require.Zero(t, f.count("acquire"))
}
