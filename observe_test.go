package locker_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

// events records what an observer is told.
type events struct {
	mu   sync.Mutex
	list []locker.Event
}

func (r *events) observe(e locker.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

func (r *events) take() []locker.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

func kinds(list []locker.Event) []locker.EventKind {
	var ks []locker.EventKind
	for _, e := range list {
		ks = append(ks, e.Kind)
	}
	return ks
}

func TestObserver_isToldTheLifeOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec events
		store := memlock.NewStore()
		f := newFaulty(store)
		l := newOver(t, f, &locker.Config{TTL: ttl, Observer: rec.observe})
		other := acquire(t, newMem(t, store, nil), "k")
		time.AfterFunc(2*time.Second, func() { _ = other.Release(context.Background()) })

		k := acquire(t, l, "k", locker.WithLabel("night"))
		synctest.Wait()
		got := rec.take()
		require.Equal(t, []locker.EventKind{locker.EventWaiting, locker.EventAcquired}, kinds(got))
		require.ErrorIs(t, got[0].Err, locker.ErrHeld)
		acquired := got[1]
		require.GreaterOrEqual(t, acquired.Wait, 2*time.Second)
		require.Equal(t, "faulty", acquired.Backend)
		require.Equal(t, "k", acquired.Key)
		require.Equal(t, k.Owner(), acquired.Owner)
		require.Equal(t, "night", acquired.Label)
		require.Equal(t, k.Token(), acquired.Token)

		time.Sleep(ttl / 3)
		synctest.Wait()
		require.Equal(t, []locker.EventKind{locker.EventRenewed}, kinds(rec.take()))

		f.set(only("renew", fails(io.EOF)), nil)
		<-k.Done()
		synctest.Wait()
		got = rec.take()
		require.Equal(t, locker.EventRenewalFailed, got[0].Kind)
		require.ErrorIs(t, got[0].Err, io.EOF)
		require.Equal(t, locker.EventLost, got[len(got)-1].Kind)
		require.ErrorIs(t, got[len(got)-1].Err, locker.ErrLost)
		require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
		f.set(nil, nil)
		synctest.Wait() // for the attempt that this release sent

		k = acquire(t, l, "k")
		time.Sleep(time.Second / 2)
		require.NoError(t, k.Release(t.Context()))
		synctest.Wait()
		got = rec.take()
		require.Equal(t, []locker.EventKind{locker.EventAcquired, locker.EventReleased}, kinds(got))
		require.NoError(t, got[1].Err)
		require.Equal(t, time.Second/2, got[1].Held)
	})
}

func TestObserver_thatPanicsOrBlocksBreaksNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		l := newOver(t, newFaulty(nil), &locker.Config{TTL: ttl, Observer: func(e locker.Event) {
			if e.Kind == locker.EventRenewed || e.Kind == locker.EventLost {
				<-stop
			}
			panic(e.Kind)
		}})
		k := acquire(t, l, "k")
		limited := acquire(t, l, "limited", locker.WithMaxHold(2*ttl))
		time.Sleep(10 * ttl)
		require.NoError(t, k.Err())
		require.True(t, isDone(limited), "a blocked observer does not hold up a deadline")
		close(stop)
		require.NoError(t, k.Release(t.Context()))
	})
}

func TestObserver_thatBlocksOnAFailedRenewalDoesNotHoldUpTheNext(t *testing.T) { // H1, H3
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		f := newFaulty(nil)
		l := newOver(t, f, &locker.Config{TTL: ttl, Observer: func(e locker.Event) {
			if e.Kind == locker.EventRenewalFailed {
				<-block // a slow log
			}
		}})
		for _, failure := range []fault{fails(io.EOF), untilEnd, hang(block)} {
			k := acquire(t, l, "k")
			f.set(only("renew", first(1, failure)), nil)
			time.Sleep(3 * ttl)
			require.NoError(t, k.Err())
			f.set(nil, nil)
			require.NoError(t, k.Release(t.Context()))
		}
		close(block)
	})
}

func TestObserver_thatBlocksDoesNotHoldUpTheRestOfABatch(t *testing.T) { // H3
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		l := newOver(t, &batches{faulty: newFaulty(nil)}, &locker.Config{TTL: ttl, Observer: func(e locker.Event) {
			if e.Kind == locker.EventRenewed {
				<-block
			}
		}})
		a, b := acquire(t, l, "a"), acquire(t, l, "b")
		time.Sleep(10 * ttl)
		require.NoError(t, a.Err())
		require.NoError(t, b.Err())
		close(block)
	})
}

// warner finds fault with its store.
type warner struct {
	locker.Backend
	report func(error)
	await  func(context.Context) // until the last report; nil: there is none to come
}

func (w *warner) OnWarning(report func(error)) { w.report = report }

func (w *warner) AwaitWarnings(ctx context.Context) {
	if w.await != nil {
		w.await(ctx)
	}
}

func (w *warner) Info() locker.Info {
	return locker.Info{Name: "wobbly", Can: locker.CapExclusive, Local: true}
}

func TestObserver_isToldWarningsOfTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec events
		w := &warner{Backend: memlock.NewBackend(nil)}
		block := make(chan struct{})
		l, err := locker.New(w, &locker.Config{Observer: func(e locker.Event) {
			rec.observe(e)
			if e.Kind == locker.EventWarning {
				<-block
				panic("an observer's own trouble")
			}
		}})
		require.NoError(t, err)
		w.report(io.ErrShortBuffer) // does not block
		k := acquire(t, l, "k")
		require.NoError(t, k.Release(t.Context()))
		synctest.Wait()
		for _, e := range rec.take() {
			if e.Kind == locker.EventWarning {
				require.Equal(t, locker.Event{Kind: locker.EventWarning, Backend: "wobbly", Err: io.ErrShortBuffer}, e)
				close(block)
			}
		}
		<-block
		require.NoError(t, l.Close(t.Context()))
		w.report(io.ErrShortBuffer)
		synctest.Wait()
		require.Empty(t, rec.take(), "a closed Locker says nothing")
	})
	w := &warner{Backend: memlock.NewBackend(nil)}
	newOver(t, w, nil)
	require.Nil(t, w.report, "without an observer nobody has to look")
}

func TestClose_waitsForTheLastWarnings(t *testing.T) {
	never := func(ctx context.Context) { <-ctx.Done() }
	for name, c := range map[string]struct {
		await  func(context.Context)
		before time.Duration // the end of Close's ctx; 0: none
		took   time.Duration
	}{
		"none to come":         {took: 0},
		"soon":                 {await: func(context.Context) { time.Sleep(200 * time.Millisecond) }, took: 200 * time.Millisecond},
		"never":                {await: never, took: 500 * time.Millisecond},
		"and ctx ends earlier": {await: never, before: 100 * time.Millisecond, took: 100 * time.Millisecond},
		"and ctx has ended":    {await: never, before: -1, took: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rec events
				w := &warner{Backend: memlock.NewBackend(nil)}
				if c.await != nil {
					w.await = func(ctx context.Context) {
						c.await(ctx)
						w.report(io.ErrShortBuffer)
					}
				}
				l, err := locker.New(w, &locker.Config{Observer: rec.observe})
				require.NoError(t, err)
				ctx := t.Context()
				if c.before != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.before)
					defer cancel()
				}
				start := time.Now()
				require.NoError(t, l.Close(ctx))
				require.Equal(t, c.took, time.Since(start))
				if c.await != nil {
					require.Len(t, rec.take(), 1, "what was found out is told, before Close returns")
				}
				w.report(io.ErrShortBuffer)
				synctest.Wait()
				require.Empty(t, rec.take())
			})
		})
	}
}
