package wakeup_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/wakeup"
)

// bubble runs a test in a bubble, with Topics whose service does nothing by itself: the
// test speaks for the store. When it returns, all must have ended.
func bubble(t *testing.T, test func(t *testing.T, topics *wakeup.Topics[string])) {
	synctest.Test(t, func(t *testing.T) {
		topics := wakeup.New[string](func(ctx context.Context) { <-ctx.Done() })
		test(t, topics)
		require.NoError(t, topics.Close(t.Context()))
	})
}

// pending is a Watch under way.
type pending struct {
	watch locker.Watch
	err   error
	done  chan struct{}
}

// begin calls Watch and returns when that blocks or has returned.
func begin(ctx context.Context, topics *wakeup.Topics[string], key string) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.watch, p.err = topics.Watch(ctx, key)
	}()
	synctest.Wait()
	return p
}

func (p *pending) waits() bool {
	synctest.Wait()
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// watched is the Watch that has been confirmed by now.
func (p *pending) watched(t *testing.T) locker.Watch {
	t.Helper()
	require.False(t, p.waits(), "no confirmation")
	require.NoError(t, p.err)
	return p.watch
}

func (p *pending) requireErr(t *testing.T, target error) {
	t.Helper()
	require.False(t, p.waits(), "it waits")
	require.ErrorIs(t, p.err, target)
	require.Nil(t, p.watch)
}

// confirmed watches a key that the store has been asked for and confirms.
func confirmed(t *testing.T, topics *wakeup.Topics[string], key string) locker.Watch {
	t.Helper()
	p := begin(t.Context(), topics, key)
	topics.Ask()
	topics.Confirm(key)
	return p.watched(t)
}

func woken(w locker.Watch) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

// requireSwept sweeps and says what of it is expected.
func requireSwept(t *testing.T, topics *wakeup.Topics[string], watched, dropped, others []string) {
	t.Helper()
	w, d, o := topics.Sweep()
	require.ElementsMatch(t, watched, w, "watched")
	require.ElementsMatch(t, dropped, d, "dropped")
	require.ElementsMatch(t, others, o, "others")
}

func wanted(topics *wakeup.Topics[string]) bool {
	select {
	case <-topics.Wanted():
		return true
	default:
		return false
	}
}

func TestWatch_returnsWhenTheStoreHasConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		p := begin(t.Context(), topics, "k")
		require.True(t, p.waits())
		require.True(t, wanted(topics))
		require.Equal(t, []string{"k"}, topics.Ask())
		require.Empty(t, topics.Ask(), "it was asked for")
		require.True(t, p.waits())
		topics.Confirm("other")
		require.True(t, p.waits())
		topics.Confirm("k")
		require.False(t, woken(p.watched(t)), "there was nothing to miss")

		// One that comes later finds it confirmed, and costs the store nothing.
		begin(t.Context(), topics, "k").watched(t)
		require.False(t, wanted(topics))
		require.Empty(t, topics.Ask())
	})
}

func TestWatch_thatComesWhileTheStoreIsAskedIsConfirmedWithTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		p := begin(t.Context(), topics, "k")
		topics.Ask()
		late := begin(t.Context(), topics, "k")
		require.Empty(t, topics.Ask())
		require.True(t, late.waits())
		topics.Confirm("k")
		p.watched(t)
		late.watched(t)
	})
}

func TestWake_wakesAllOfATopicAndIsMerged(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		a, b, closed := confirmed(t, topics, "k"), confirmed(t, topics, "k"), confirmed(t, topics, "k")
		other := confirmed(t, topics, "other")
		closed.Close()
		closed.Close()
		topics.Wake("k")
		topics.Wake("k")
		topics.Wake("unknown")
		for _, w := range []locker.Watch{a, b} {
			require.True(t, woken(w))
			require.False(t, woken(w))
		}
		require.False(t, woken(closed))
		require.False(t, woken(other))
	})
}

func TestWatch_whoseContextEndsLeavesNothing(t *testing.T) { // W3
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		gone := errors.New("no longer interested")
		ctx, cancel := context.WithCancelCause(t.Context())
		unanswered := begin(ctx, topics, "unanswered")
		topics.Ask()
		unasked := begin(ctx, topics, "unasked")
		cancel(gone)
		unasked.requireErr(t, gone)
		unanswered.requireErr(t, gone)
		require.Empty(t, topics.Ask(), "nobody wants it")
		begin(ctx, topics, "k").requireErr(t, gone)

		// The one that was asked for stays for a moment, and is not known to be confirmed.
		requireSwept(t, topics, nil, nil, []string{"unasked"})
		requireSwept(t, topics, nil, nil, []string{"unanswered"})
		requireSwept(t, topics, nil, nil, nil)
	})
}

func TestLost_failsWhoWaitsAndWakesTheOthersWithTheNextConfirmation(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		had := confirmed(t, topics, "k")
		askedFor := begin(t.Context(), topics, "asked")
		topics.Ask()
		unasked := begin(t.Context(), topics, "unasked")
		topics.Lost(io.EOF)
		askedFor.requireErr(t, io.EOF)
		unasked.requireErr(t, io.EOF)
		require.False(t, woken(had), "not before it can trust in wake-ups again")

		late := begin(t.Context(), topics, "k")
		require.True(t, late.waits(), "the confirmation was of the old connection")
		require.Equal(t, []string{"k"}, topics.Ask(), "what nobody watches any more is not asked for")
		topics.Lost(io.EOF)
		late.requireErr(t, io.EOF)
		require.Equal(t, []string{"k"}, topics.Ask())
		topics.Confirm("k")
		require.True(t, woken(had))
		topics.Confirm("k")
		require.False(t, woken(had), "a second confirmation is no news")
	})
}

func TestRefuse_failsWhoWaitsForWhatWasAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		good := confirmed(t, topics, "good")
		had := confirmed(t, topics, "bad")
		topics.Lost(io.EOF)
		bad := begin(t.Context(), topics, "bad")
		topics.Ask()
		topics.Confirm("good")
		require.True(t, woken(good))
		next := begin(t.Context(), topics, "next")
		topics.Refuse(io.ErrNoProgress)
		bad.requireErr(t, io.ErrNoProgress)
		require.True(t, next.waits(), "it was not asked for")
		require.False(t, woken(had))
		require.ElementsMatch(t, []string{"bad", "next"}, topics.Ask(), "and another try for who had it")
		topics.Confirm("bad")
		require.True(t, woken(had))
		topics.Confirm("next")
		next.watched(t)
	})
}

func TestSweep_dropsWhatNobodyHasWatchedForTwoOfThem(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		w, other := confirmed(t, topics, "k"), confirmed(t, topics, "other")
		requireSwept(t, topics, []string{"k", "other"}, nil, nil)
		w.Close()
		requireSwept(t, topics, []string{"other"}, nil, nil)

		// Watched again in time, it begins anew.
		begin(t.Context(), topics, "k").watched(t).Close()
		requireSwept(t, topics, []string{"other"}, nil, nil)
		requireSwept(t, topics, []string{"other"}, []string{"k"}, nil)
		requireSwept(t, topics, []string{"other"}, nil, nil)
		topics.Wake("other")
		require.True(t, woken(other))
	})
}

func TestSweep_doesNotKeepWhatIsNotOnThisConnection(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		confirmed(t, topics, "k").Close()
		topics.Lost(io.EOF)
		requireSwept(t, topics, nil, nil, []string{"k"})
	})
}

// The store does what it is told in order: first to end what was dropped, then what it is
// asked for.
func TestSweep_aTopicThatIsWatchedAgainBeforeTheStoreKnowsIsAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		confirmed(t, topics, "other")
		old := confirmed(t, topics, "k")
		old.Close()
		topics.Sweep()
		requireSwept(t, topics, []string{"other"}, []string{"k"}, nil)
		p := begin(t.Context(), topics, "k")
		old.Close() // has no part in it
		require.True(t, p.waits(), "the store is about to end it")
		require.Equal(t, []string{"k"}, topics.Ask())
		topics.Ended("k")
		require.Empty(t, topics.Ask(), "that was the earlier one")
		topics.Confirm("k")
		w := p.watched(t)
		require.False(t, woken(w))

		// If the store does it the other way round, it is asked once more.
		for wanted(topics) {
		}
		topics.Ended("k")
		require.True(t, wanted(topics))
		require.Equal(t, []string{"k"}, topics.Ask())
		topics.Confirm("k")
		require.True(t, woken(w), "it was off for a moment")
		topics.Ended("unknown")
		require.False(t, wanted(topics))
	})
}

func TestClose_failsWhoWaitsNowAndLater(t *testing.T) {
	bubble(t, func(t *testing.T, topics *wakeup.Topics[string]) {
		had := confirmed(t, topics, "had")
		askedFor := begin(t.Context(), topics, "asked")
		topics.Ask()
		unasked := begin(t.Context(), topics, "unasked")
		require.NoError(t, topics.Close(t.Context()))
		for _, p := range []*pending{askedFor, unasked, begin(t.Context(), topics, "had")} {
			p.requireErr(t, locker.ErrClosed)
			require.Equal(t, locker.Permanent(locker.ErrClosed), p.err)
		}
		topics.Confirm("had")
		topics.Confirm("asked")
		topics.Wake("had")
		topics.Lost(io.EOF)
		require.False(t, woken(had))
		require.Empty(t, topics.Ask())
		requireSwept(t, topics, nil, nil, nil)
		had.Close()
	})
}

func TestClose_waitsForTheServiceUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = time.Minute
		require.NoError(t, wakeup.New[string](nil).Close(t.Context()), "there is none")
		topics := wakeup.New[string](func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(slow)
		})
		confirmed(t, topics, "k")
		ctx, cancel := context.WithTimeout(t.Context(), slow/3)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, topics.Close(ctx), context.DeadlineExceeded)
		require.Equal(t, slow/3, time.Since(start))
		require.NoError(t, topics.Close(t.Context()))
		require.Equal(t, slow, time.Since(start))
	})
}

func TestService_runsWhileSomethingIsWatchedAndNeverTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = time.Minute
		var running, begun atomic.Int32
		topics := wakeup.New[string](func(ctx context.Context) {
			begun.Add(1)
			running.Add(1)
			<-ctx.Done()
			time.Sleep(slow) // it has a connection to close
			running.Add(-1)
		})
		require.Zero(t, begun.Load())
		a, b := confirmed(t, topics, "a"), confirmed(t, topics, "b")
		require.EqualValues(t, 1, begun.Load())
		a.Close()
		b.Close()
		topics.Sweep()
		requireSwept(t, topics, nil, []string{"a", "b"}, nil)

		// The next one waits until the first has ended.
		p := begin(t.Context(), topics, "a")
		require.EqualValues(t, 1, begun.Load())
		time.Sleep(slow)
		synctest.Wait()
		require.EqualValues(t, 2, begun.Load())
		require.EqualValues(t, 1, running.Load())
		require.Equal(t, []string{"a"}, topics.Ask())
		topics.Confirm("a")
		p.watched(t)
		topics.Sweep()
		time.Sleep(2 * slow)
		require.EqualValues(t, 1, running.Load())
		require.NoError(t, topics.Close(t.Context()))
		require.Zero(t, running.Load())
	})
}
