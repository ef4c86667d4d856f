package redislock

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestNewBackend_refusesBadSettings(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for name, try := range map[string]func() (locker.Backend, error){
		"no client":       func() (locker.Backend, error) { return NewBackend(nil, nil) },
		"typed nil":       func() (locker.Backend, error) { return NewBackend((*redis.Client)(nil), nil) },
		"NUL in prefix":   func() (locker.Backend, error) { return NewBackend(rdb, &Config{Prefix: "a\x00"}) },
		"not UTF-8":       func() (locker.Backend, error) { return NewBackend(rdb, &Config{Prefix: "\xff"}) },
		"too long prefix": func() (locker.Backend, error) { return NewBackend(rdb, &Config{Prefix: strings.Repeat("p", 513)}) },
	} {
		t.Run(name, func(t *testing.T) {
			b, err := try()
			require.ErrorIs(t, err, locker.ErrInvalid)
			require.Nil(t, b)
		})
	}
	_, err := New(rdb, &Config{Config: locker.Config{TTL: -1}})
	require.ErrorIs(t, err, locker.ErrInvalid)
	_, err = New(nil, nil)
	require.ErrorIs(t, err, locker.ErrInvalid)
}

func TestTryAcquire_tellsWhoHoldsTheKeyAndForHowLong(t *testing.T) {
	srv := startServer(t)
	rdb := connect(t, srv)
	a, b := backendOn(t, rdb, "p:"), backendOn(t, connect(t, srv), "p:")
	req := request("k", time.Minute)
	req.Label = "host 7"
	g, err := a.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, time.Minute, g.Lease().TTL)
	require.Zero(t, g.Lease().Since)

	held := requireHeld(t, b, "k")
	require.Equal(t, "k", held.Key)
	require.Equal(t, req.Owner+" host 7", held.Holder)
	require.InDelta(t, time.Minute, held.Remaining, float64(5*time.Second))
	require.LessOrEqual(t, held.Remaining, time.Minute)
	require.Equal(t, req.Owner+" host 7", rdb.Get(t.Context(), "p:k").Val())

	require.NoError(t, g.Release(t.Context()))
	require.Zero(t, rdb.Exists(t.Context(), "p:k").Val())
	requireFree(t, b, "k")
}

func TestTryAcquire_refusesOtherModes(t *testing.T) {
	b := backendOn(t, connect(t, startServer(t)), "")
	req := request("k", time.Minute)
	req.Mode = locker.ModeShared
	_, err := b.TryAcquire(t.Context(), req)
	require.ErrorIs(t, err, locker.ErrUnsupported)
	requireFree(t, b, "k")
}

func TestTryAcquire_ownValueIsAGrantWithANewToken(t *testing.T) {
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "")
	req := request("k", time.Minute)
	first, err := b.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, rdb.PExpire(t.Context(), "k", 20*time.Second).Err())
	second, err := b.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	require.Greater(t, second.Token(), first.Token())
	require.LessOrEqual(t, rdb.PTTL(t.Context(), "k").Val(), 20*time.Second, "its lease counts from the first sending")

	// A label makes it another holder.
	req.Label = "x"
	_, err = b.TryAcquire(t.Context(), req)
	require.ErrorIs(t, err, locker.ErrHeld)
}

func TestTryAcquire_roundsUpAndNeverLeavesAKeyWithoutExpiry(t *testing.T) { // C66, C70
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "")
	g := take(t, b, "k", 1500*time.Microsecond)
	require.Equal(t, 2*time.Millisecond, g.Lease().TTL)
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "k").Val() == 0 }, soon, time.Millisecond)

	for _, ttl := range []time.Duration{0, -time.Second} {
		g, err := b.TryAcquire(t.Context(), request("k", ttl))
		require.Nil(t, g)
		require.Error(t, err)
		require.True(t, b.isPermanent(err))
		require.Zero(t, rdb.DBSize(t.Context()).Val()-1, "only the counter of the first grant")
	}
}

// rawDelete is the compare-and-delete that other libraries release by.
var rawDelete = redis.NewScript(`if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)

func TestBackend_plainClientsTakePartOnTheSameKey(t *testing.T) {
	srv := startServer(t)
	rdb := connect(t, srv)
	b := backendOn(t, connect(t, srv), "p:")

	g := take(t, b, "k", time.Minute)
	ok, err := rdb.SetNX(t.Context(), "p:k", "them", time.Minute).Result()
	require.NoError(t, err)
	require.False(t, ok, "they are kept out")
	n, err := rawDelete.Run(t.Context(), rdb, []string{"p:k"}, "them").Int()
	require.NoError(t, err)
	require.Zero(t, n, "and cannot free what is ours")
	require.NoError(t, g.Release(t.Context()))

	ok, err = rdb.SetNX(t.Context(), "p:k", "them", time.Minute).Result()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "them", requireHeld(t, b, "k").Holder)
	requireLost(t, g.Release(t.Context()), locker.ReasonTaken)
	n, err = rawDelete.Run(t.Context(), rdb, []string{"p:k"}, "them").Int()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	requireFree(t, b, "k")

	// A holder without an expiry has no known end.
	require.NoError(t, rdb.Set(t.Context(), "p:k", "for ever", 0).Err())
	require.Zero(t, requireHeld(t, b, "k").Remaining)
}

func TestBackend_redisCliTakesPart(t *testing.T) {
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip(err)
	}
	srv := startServer(t)
	b := backendOn(t, connect(t, srv), "")
	host, port, _ := strings.Cut(srv.Addr(), ":")
	run := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), cli, append([]string{"-h", host, "-p", port}, args...)...).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	g := take(t, b, "k", time.Minute)
	require.Empty(t, run("SET", "k", "shell", "NX", "PX", "60000"))
	require.NoError(t, g.Release(t.Context()))
	require.Equal(t, "OK", run("SET", "k", "shell", "NX", "PX", "60000"))
	require.Equal(t, "shell", requireHeld(t, b, "k").Holder)
	require.Equal(t, "1", run("DEL", "k"))
	requireFree(t, b, "k")
}

func TestGrant_endsOnlyWhatIsItsOwn(t *testing.T) { // C18, C19, C28, C29, C33
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "")
	ctx := t.Context()
	for name, other := range map[string]struct {
		set    func(key string)
		reason locker.Reason
	}{
		"deleted": {func(key string) { rdb.Del(ctx, key) }, locker.ReasonExpired},
		"taken":   {func(key string) { rdb.Set(ctx, key, "them", time.Minute) }, locker.ReasonTaken},
		"another type": {func(key string) {
			rdb.Del(ctx, key)
			rdb.HSet(ctx, key, "field", 1)
			rdb.PExpire(ctx, key, time.Minute)
		}, locker.ReasonTaken},
	} {
		t.Run(name, func(t *testing.T) {
			g := take(t, b, name, 10*time.Second)
			other.set(name)
			before := rdb.PTTL(ctx, name).Val()

			_, err := g.Renew(ctx, time.Hour)
			requireLost(t, err, other.reason)
			_, err = b.Extend(ctx, g, time.Hour)
			requireLost(t, err, other.reason)
			b.RenewAll(ctx, []locker.Renewal{{Grant: g, TTL: time.Hour}}, func(_ int, _ locker.Lease, err error) {
				requireLost(t, err, other.reason)
			})
			requireLost(t, g.Release(ctx), other.reason)
			require.LessOrEqual(t, rdb.PTTL(ctx, name).Val(), before, "nothing was made or moved")
		})
	}
}

func TestGrant_expiresByTheServersClock(t *testing.T) {
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "")
	g := take(t, b, "k", 20*time.Millisecond)
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "k").Val() == 0 }, soon, time.Millisecond)
	requireLost(t, g.Release(t.Context()), locker.ReasonExpired)
}

func TestRenew_neverShortensAndExtendSetsExactly(t *testing.T) { // C44
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "")
	ctx := t.Context()
	g := take(t, b, "k", 30*time.Second)
	left := func() time.Duration { return rdb.PTTL(ctx, "k").Val() }

	lease, err := g.Renew(ctx, 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, lease.TTL, "what was asked for is what may be counted on")
	require.Greater(t, left(), 20*time.Second)
	for range 10 {
		_, err = g.Renew(ctx, 40*time.Second)
		require.NoError(t, err)
	}
	require.InDelta(t, 40*time.Second, left(), float64(5*time.Second))

	for range 10 {
		lease, err = b.Extend(ctx, g, 2*time.Second)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, lease.TTL)
	}
	require.LessOrEqual(t, left(), 2*time.Second)

	for _, ttl := range []time.Duration{0, -time.Second} { // C43
		_, err = g.Renew(ctx, ttl)
		require.Error(t, err)
		_, err = b.Extend(ctx, g, ttl)
		require.Error(t, err)
		require.NotErrorIs(t, err, locker.ErrLost)
		require.Equal(t, g.holder, rdb.Get(ctx, "k").Val())
	}
	// A key that somebody made immortal gets its end back: it would block the others
	// for ever if this holder crashed. C70
	require.NoError(t, rdb.Persist(ctx, "k").Err())
	_, err = g.Renew(ctx, time.Second)
	require.NoError(t, err)
	require.LessOrEqual(t, left(), time.Second)
	require.Positive(t, left())
	require.NoError(t, g.Release(ctx))
}

func TestRenewAll_isOnePipeline(t *testing.T) { // C132
	srv := startServer(t)
	counts := &pipelines{}
	rdb := connect(t, srv)
	rdb.AddHook(counts)
	b := backendOn(t, rdb, "")
	ctx := t.Context()
	for _, n := range []int{1_000, 10_000} {
		renewals := make([]locker.Renewal, n)
		for i := range renewals {
			renewals[i] = locker.Renewal{Grant: take(t, b, uuid.NewString(), time.Minute), TTL: time.Hour}
		}
		lost := renewals[7].Grant.(*grant)
		require.NoError(t, lost.Release(ctx))

		renewAll := func() {
			answers := make([]int, n)
			b.RenewAll(ctx, renewals, func(i int, lease locker.Lease, err error) {
				answers[i]++
				if i == 7 {
					requireLost(t, err, locker.ReasonExpired)
					return
				}
				require.NoError(t, err)
				require.Equal(t, time.Hour, lease.TTL)
			})
			for i, times := range answers {
				require.Equal(t, 1, times, "answers for renewal %d", i)
			}
		}
		rdb.ScriptFlush(ctx)
		renewAll() // C84: a second pipeline brings the script
		counts.piped.Store(0)
		counts.single.Store(0)
		renewAll()
		require.EqualValues(t, 1, counts.piped.Load())
		require.Zero(t, counts.single.Load())
		require.Greater(t, rdb.PTTL(ctx, renewals[n-1].Grant.(*grant).name).Val(), 50*time.Minute)
	}
}

func TestRenewAll_answersForGrantsThatAreNotItsOwn(t *testing.T) {
	b := backendOn(t, connect(t, startServer(t)), "")
	own := take(t, b, "k", time.Minute)
	got := make(map[int]error)
	b.RenewAll(t.Context(), []locker.Renewal{{Grant: strange{}, TTL: time.Minute}, {Grant: own, TTL: time.Minute}},
		func(i int, _ locker.Lease, err error) { got[i] = err })
	require.Len(t, got, 2)
	require.ErrorIs(t, got[0], locker.ErrInvalid)
	require.NoError(t, got[1])
	b.RenewAll(t.Context(), nil, func(int, locker.Lease, error) { t.Error("there was nothing to answer") })
	_, err := b.Extend(t.Context(), strange{}, time.Minute)
	require.ErrorIs(t, err, locker.ErrInvalid)
}

type strange struct{ locker.Grant }

func TestInspector_showsAndFreesTheHolderThatWasShown(t *testing.T) {
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "p:")
	ctx := t.Context()
	h, err := b.Inspect(ctx, "k")
	require.NoError(t, err)
	require.Zero(t, h)

	g := take(t, b, "k", time.Minute)
	h, err = b.Inspect(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, g.holder, h.Holder)
	require.Zero(t, h.Token)
	require.InDelta(t, time.Minute, h.Remaining, float64(5*time.Second))

	done, err := b.ForceRelease(ctx, "k", "somebody")
	require.NoError(t, err)
	require.False(t, done)
	done, err = b.ForceRelease(ctx, "k", h.Holder)
	require.NoError(t, err)
	require.True(t, done)
	done, err = b.ForceRelease(ctx, "k", h.Holder)
	require.NoError(t, err)
	require.False(t, done)
	requireLost(t, g.Release(ctx), locker.ReasonExpired)

	require.NoError(t, rdb.HSet(ctx, "p:k", "f", 1).Err())
	_, err = b.Inspect(ctx, "k")
	require.ErrorContains(t, err, "WRONGTYPE")
}

func TestBackend_aCycleIsTwoRequests(t *testing.T) {
	srv := startServer(t)
	w := &wire{}
	b := backendOn(t, connect(t, srv, w.use), "")
	admin := connect(t, srv)
	requireFree(t, b, "warm") // connects, and loads the scripts
	evalsha, eval := calls(t, admin, "evalsha"), calls(t, admin, "eval")
	writes := w.writes.Load()
	for range 100 {
		requireFree(t, b, "k")
	}
	require.EqualValues(t, 200, w.writes.Load()-writes)
	require.Equal(t, 200, calls(t, admin, "evalsha")-evalsha)
	require.Equal(t, eval, calls(t, admin, "eval"))
}

func TestBackend_worksWithAPoolOfOne(t *testing.T) {
	srv := startServer(t)
	w := &wire{}
	b := backendOn(t, connect(t, srv, w.use, func(o *redis.Options) {
		o.PoolSize, o.MaxActiveConns, o.PoolTimeout = 1, 1, 100*time.Millisecond
	}), "")
	g := take(t, b, "k", time.Minute)
	watch, err := b.Watch(t.Context(), "k")
	require.NoError(t, err)
	defer watch.Close()
	requireHeld(t, b, "k")
	b.RenewAll(t.Context(), []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
		require.NoError(t, err)
	})
	require.NoError(t, g.Release(t.Context()))
	awaitWake(t, watch)
}

func TestClose_endsTheClientOnlyIfOpenMadeIt(t *testing.T) {
	srv := startServer(t)
	rdb := connect(t, srv)
	b := backendOn(t, rdb, "")
	require.NoError(t, b.Close(context.Background()))
	require.NoError(t, rdb.Ping(t.Context()).Err())

	own := connect(t, srv)
	b, err := newBackend(own, &Config{})
	require.NoError(t, err)
	b.owned = own
	require.NoError(t, b.Close(context.Background()))
	require.ErrorIs(t, own.Ping(t.Context()).Err(), redis.ErrClosed)
}
