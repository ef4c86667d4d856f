package locker

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBackoff_staysWithinItsBounds(t *testing.T) { // C130
	var b backoff
	for i := range 1_000_000 {
		d := b.next()
		if d < minBackoff/2 || d > maxBackoff {
			t.Fatalf("attempt %d: %v", i, d)
		}
	}
}

func TestRecheck_isTimedByTheRemainingLease(t *testing.T) { // W1
	for remaining, want := range map[time.Duration]time.Duration{
		0:                      3 * time.Second,
		30 * time.Second:       10 * time.Second,
		time.Second:            time.Second / 3,
		200 * time.Millisecond: 200 * time.Millisecond,
		time.Nanosecond:        time.Millisecond,
	} {
		var p pursuit
		require.InDelta(t, want, p.recheck(remaining, true), float64(4*time.Millisecond))
	}
	var p pursuit
	p.recheck(time.Millisecond, true)
	for range 10 {
		require.GreaterOrEqual(t, p.recheck(time.Millisecond, true), 50*time.Millisecond, "C60: no hot loop on a short lease")
	}
	for range 100 {
		require.LessOrEqual(t, p.recheck(time.Hour, false), time.Second)
	}
}

// oneGrant grants everything at once.
type oneGrant struct{}

func (oneGrant) Info() Info { return Info{Name: "one", Can: CapExclusive} }
func (oneGrant) TryAcquire(_ context.Context, req Request) (Grant, error) {
	return grantOf(req.TTL), nil
}

type grantOf time.Duration

func (g grantOf) Token() uint64 { return 1 }
func (g grantOf) Lease() Lease  { return Lease{TTL: time.Duration(g)} }
func (g grantOf) Renew(_ context.Context, ttl time.Duration) (Lease, error) {
	return Lease{TTL: ttl}, nil
}
func (g grantOf) Release(context.Context) error { return nil }

func TestLock_countsTheMachinesSleep(t *testing.T) { // H2
	synctest.Test(t, func(t *testing.T) {
		l, err := New(oneGrant{}, nil)
		require.NoError(t, err)
		c := l.(*core)
		var slept atomic.Int64
		c.asleep = func() time.Duration { return 5*time.Hour + time.Duration(slept.Load()) }

		k, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		before := k.Deadline()
		slept.Add(int64(10 * time.Second))
		require.Equal(t, before.Add(-10*time.Second), k.Deadline())
		require.NoError(t, k.Err())
		time.Sleep(DefaultTTL)
		require.NoError(t, k.Err(), "renewed after the resume")

		slept.Add(int64(DefaultTTL))
		require.ErrorIs(t, k.Err(), ErrLost, "at once")

		k, err = l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		start := time.Now()
		slept.Add(int64(DefaultTTL))
		<-k.Done()
		require.LessOrEqual(t, time.Since(start), maxRest, "the timer looks at it soon")
		require.NoError(t, l.Close(t.Context()))
	})
}

// drowsy is a store behind a machine that falls asleep during each attempt.
type drowsy struct {
	oneGrant
	asleep func()
}

func (b drowsy) TryAcquire(ctx context.Context, req Request) (Grant, error) {
	b.asleep()
	return b.oneGrant.TryAcquire(ctx, req)
}

func TestTryAcquire_aGrantThatTheMachineSleptThroughIsNotHandedOut(t *testing.T) { // G8, H2
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		l, err := New(drowsy{asleep: func() { slept.Add(int64(DefaultTTL)) }}, nil)
		require.NoError(t, err)
		l.(*core).asleep = func() time.Duration { return time.Duration(slept.Load()) }
		k, err := l.TryAcquire(t.Context(), "k")
		require.Nil(t, k)
		require.ErrorIs(t, err, ErrLost)
		require.NoError(t, l.Close(t.Context()))
	})
}
