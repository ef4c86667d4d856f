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

// session is a faulty backend whose grants stand on one session of the store. They
// do not end by themselves: only the session does.
type session struct {
	*faulty
	told *told
}

// told is how the backend reports losses.
type told struct {
	report func(key, owner string, err error)
}

func newSession(store *memlock.Store) session {
	f := newFaulty(store)
	f.Backend = endless{f.Backend}
	return session{f, new(told)}
}

func (b session) Info() locker.Info {
	i := b.faulty.Info()
	i.Multiplexed = true
	i.Can = i.Can&^locker.CapExtend | locker.CapPushLoss
	return i
}

func (b session) OnLoss(report func(key, owner string, err error)) { b.told.report = report }

// Extend is not to be had: it hides faulty's.
func (b session) Extend() {}

// endless grants leases that the store does not end.
type endless struct{ locker.Backend }

func (b endless) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	ttl := req.TTL
	req.TTL = locker.MaxTTL
	g, err := b.Backend.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return endlessGrant{g, ttl}, nil
}

type endlessGrant struct {
	locker.Grant
	ttl time.Duration
}

func (g endlessGrant) Lease() locker.Lease { return locker.Lease{TTL: g.ttl} }

func (g endlessGrant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	_, err := g.Grant.Renew(ctx, ttl)
	return locker.Lease{TTL: ttl}, err
}

func TestNew_refusesSessionsInThisProcess(t *testing.T) {
	_, err := locker.New(localSession{newSession(nil)}, nil)
	require.ErrorIs(t, err, locker.ErrInvalid)
}

type localSession struct{ session }

func (b localSession) Info() locker.Info {
	i := b.session.Info()
	i.Local = true
	return i
}

func TestMultiplexed_whatEndsByTheClockIsGivenBack(t *testing.T) { // R4, H3, C48
	for name, tc := range map[string]struct {
		opt    locker.Option
		after  time.Duration // the end, a margin after the loss
		reason locker.Reason
	}{
		"left to expire": {locker.WithoutRenewal(), ttl, locker.ReasonExpired},
		"max hold":       {locker.WithMaxHold(ttl / 2), ttl/2 + ttl/20, locker.ReasonMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				b := newSession(store)
				l, other := newOver(t, b, withTTL(ttl)), newOver(t, newSession(store), withTTL(ttl))
				start := time.Now()
				k := acquire(t, l, "k", tc.opt)
				kept := acquire(t, l, "kept")
				<-k.Done()
				require.Equal(t, tc.reason, lostReason(t, k.Err()))
				time.Sleep(tc.after - time.Since(start) - time.Nanosecond)
				requireHeld(t, other, "k") // as a lease would be: the holder has the margin
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				next, err := other.TryAcquire(t.Context(), "k")
				require.NoError(t, err)

				// The holder's own Release changes nothing any more.
				for range 2 {
					require.Equal(t, tc.reason, lostReason(t, k.Release(t.Context())))
				}
				synctest.Wait()
				require.Equal(t, 1, b.count("release"))
				require.NoError(t, next.Err())
				require.NoError(t, next.Release(t.Context()))
				require.NoError(t, kept.Release(t.Context()))
				require.Zero(t, store.Len())
			})
		})
	}
}

func TestMultiplexed_aReleaseAfterTheDeadlineDoesNotWaitForTheMargin(t *testing.T) { // R4, R2
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := newSession(store)
		l := newOver(t, b, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		<-k.Done()
		require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
		synctest.Wait()
		require.Zero(t, store.Len())
		time.Sleep(ttl)
		require.Equal(t, 1, b.count("release"))
	})
}

// failsFor is an outage of releases.
func failsFor(d time.Duration) fault {
	end := time.Now().Add(d)
	return only("release", func(context.Context, string) error {
		if time.Now().Before(end) {
			return io.EOF
		}
		return nil
	})
}

func TestMultiplexed_whatFailsIsRepeatedUntilItIsDone(t *testing.T) { // R4, R2, G4
	const outage = 20 * time.Second
	for name, end := range map[string]func(*testing.T, locker.Locker, session){
		"release": func(t *testing.T, l locker.Locker, b session) {
			k := acquire(t, l, "k")
			b.set(failsFor(outage), nil)
			start := time.Now()
			err := k.Release(t.Context())
			require.ErrorIs(t, err, io.EOF)
			require.NotErrorIs(t, err, locker.ErrLost)
			require.Equal(t, 5*time.Second, time.Since(start))
		},
		"release twice": func(t *testing.T, l locker.Locker, b session) {
			k := acquire(t, l, "k")
			b.set(failsFor(outage), nil)
			for range 2 {
				require.ErrorIs(t, k.Release(t.Context()), io.EOF)
			}
			tried := b.count("release")
			time.Sleep(5 * time.Second)
			require.LessOrEqual(t, b.count("release")-tried, 10, "the second goes on with the first one's work")
		},
		"undo": func(t *testing.T, l locker.Locker, b session) {
			b.set(failsFor(outage), only("acquire", fails(io.EOF)))
			_, err := l.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, io.EOF)
		},
		"expiry": func(t *testing.T, l locker.Locker, b session) {
			b.set(failsFor(outage), nil)
			<-acquire(t, l, "k", locker.WithoutRenewal()).Done()
		},
		"max hold": func(t *testing.T, l locker.Locker, b session) {
			b.set(failsFor(outage), nil)
			<-acquire(t, l, "k", locker.WithMaxHold(ttl)).Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				b := newSession(store)
				l := newOver(t, b, withTTL(ttl))
				start := time.Now()
				end(t, l, b)
				time.Sleep(outage - time.Second - time.Since(start))
				require.Equal(t, []string{"k"}, store.Keys())
				time.Sleep(3 * time.Second)
				require.Zero(t, store.Len())
				tried := b.count("release")
				require.LessOrEqual(t, tried, 60)
				start = time.Now()
				require.NoError(t, l.Close(t.Context()))
				require.Zero(t, time.Since(start), "nothing is under way any more")
				require.Equal(t, tried, b.count("release"))
			})
		})
	}
}

func TestMultiplexed_aReleaseThatSucceededUnseenIsNil(t *testing.T) { // R1, R4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := newSession(store)
		l := newOver(t, b, withTTL(ttl))
		k := acquire(t, l, "k")
		b.set(failsFor(10*time.Second), nil)
		require.ErrorIs(t, k.Release(t.Context()), io.EOF)
		time.Sleep(7 * time.Second)
		require.Zero(t, store.Len())
		next := acquire(t, newOver(t, newSession(store), nil), "k")
		sent := b.count("release")
		require.NoError(t, k.Release(t.Context()))
		require.Equal(t, sent, b.count("release"), "the answer is known")
		require.NoError(t, next.Err())
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestMultiplexed_theEndOfTheSessionEndsIt(t *testing.T) { // R4, H5
	for name, end := range map[string]func(*testing.T, locker.Locker, session) locker.Lock{
		"release": func(t *testing.T, l locker.Locker, b session) locker.Lock {
			k := acquire(t, l, "k")
			b.set(only("release", untilEnd), nil)
			go func() {
				time.Sleep(3 * time.Second)
				b.told.report("k", k.Owner(), &locker.LostError{Reason: locker.ReasonSession})
			}()
			start := time.Now()
			// That one of the attempts has done it is not known.
			require.Equal(t, locker.ReasonSession, lostReason(t, k.Release(t.Context())))
			require.Equal(t, 3*time.Second, time.Since(start))
			return k
		},
		"expiry": func(t *testing.T, l locker.Locker, b session) locker.Lock {
			k := acquire(t, l, "k", locker.WithoutRenewal())
			b.set(only("release", fails(io.EOF)), nil)
			time.Sleep(time.Minute)
			b.told.report("k", k.Owner(), &locker.LostError{Reason: locker.ReasonSession})
			return k
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSession(memlock.NewStore())
				l := newOver(t, b, withTTL(ttl))
				end(t, l, b)
				synctest.Wait()
				tried := b.count("release")
				time.Sleep(time.Minute)
				require.Equal(t, tried, b.count("release"))
				start := time.Now()
				require.NoError(t, l.Close(t.Context()))
				require.Zero(t, time.Since(start))
			})
		})
	}
}

func TestMultiplexed_aLossOfAnotherKindDoesNotEndIt(t *testing.T) { // R4
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := newSession(store)
		l := newOver(t, b, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		b.set(failsFor(10*time.Second), nil)
		time.Sleep(5 * time.Second)
		b.told.report("k", k.Owner(), &locker.LostError{Reason: locker.ReasonExpired})
		time.Sleep(7 * time.Second)
		require.Zero(t, store.Len())
	})
}

func TestMultiplexed_aPermanentErrorEndsIt(t *testing.T) { // R4
	synctest.Test(t, func(t *testing.T) {
		b := newSession(nil)
		l := newOver(t, b, withTTL(ttl))
		k := acquire(t, l, "k", locker.WithoutRenewal())
		b.set(only("release", fails(locker.Permanent(io.EOF))), nil)
		<-k.Done()
		time.Sleep(time.Minute)
		require.Equal(t, 1, b.count("release"))
	})
}

func TestMultiplexed_CloseComesInBetween(t *testing.T) { // R4, House
	for name, tc := range map[string]struct {
		outage time.Duration // from the beginning of Close
		gone   bool
	}{
		"it passes":           {3 * time.Second, true},
		"it does not in time": {time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				s := closingSession{newSession(store)}
				l := newOver(t, s, withTTL(ttl))
				const wait = 10 * time.Second
				s.set(failsFor(wait+tc.outage), nil)
				keys := []string{"expires", "released", "live"}
				<-acquire(t, l, keys[0], locker.WithoutRenewal()).Done()
				released := acquire(t, l, keys[1])
				var wg sync.WaitGroup
				wg.Go(func() { _ = released.Release(context.Background()) })
				acquire(t, l, keys[2])
				time.Sleep(wait - ttl)
				wg.Wait()
				require.Len(t, store.Keys(), 3)

				start := time.Now()
				err := l.Close(ended())
				if tc.gone {
					require.NoError(t, err)
					require.Zero(t, store.Len())
					require.LessOrEqual(t, time.Since(start), 5*time.Second)
				} else {
					require.ErrorIs(t, err, io.EOF)
					require.ErrorContains(t, err, "no answer yet")
					require.Equal(t, 5*time.Second, time.Since(start))
				}
				require.Equal(t, 1, s.count("close"))
				synctest.Wait()
				tried := s.count("release")
				time.Sleep(time.Minute)
				require.Equal(t, tried, s.count("release"), "it has ended with Close")
			})
		})
	}
}

// closingSession is a session with resources of its own.
type closingSession struct{ session }

func (b closingSession) Close(ctx context.Context) error { return b.before(ctx, "close") }

func TestMultiplexed_aPlaceIsGivenUpUntilItIsDone(t *testing.T) { // R4, W3
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		q := newQueueing(store)
		l := newOver(t, queueingSession{q}, nil)
		remote := taken(t, store, "k", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		got := waitFor(ctx, t, l, "k")
		synctest.Wait()
		end := time.Now().Add(20 * time.Second)
		q.set(only("leave", func(context.Context, string) error {
			if time.Now().Before(end) {
				return io.EOF
			}
			return nil
		}), nil)
		cancel()
		require.Nil(t, <-got)
		time.Sleep(22 * time.Second)
		require.NoError(t, remote.Release(t.Context()))
		require.Zero(t, store.Len(), "nobody stands in line")
	})
}

type queueingSession struct{ queueing }

func (b queueingSession) Info() locker.Info {
	i := b.queueing.Info()
	i.Multiplexed = true
	return i
}

// The store ends the session soon after the Deadline, and a busy process may hear of both
// at once.
func TestLock_isNotLostOnceMoreByAReportAfterItsDeadline(t *testing.T) { // H2, H3
	synctest.Test(t, func(t *testing.T) {
		b := newSession(nil)
		l, err := locker.New(b, nil)
		require.NoError(t, err)
		for range 50 {
			k := acquire(t, l, "k", locker.WithoutRenewal())
			time.Sleep(time.Until(k.Deadline())) // its timer may run before or after this goroutine
			b.told.report("k", k.Owner(), &locker.LostError{Reason: locker.ReasonSession})
			require.Equal(t, locker.ReasonExpired, lostReason(t, k.Err()))
		}
		require.NoError(t, l.Close(t.Context()))
	})
}
