package redislock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func awaitWake(t testing.TB, w locker.Watch) {
	t.Helper()
	select {
	case <-w.C():
	case <-time.After(soon):
		require.Fail(t, "no wake-up")
	}
}

func requireQuiet(t testing.TB, w locker.Watch) {
	t.Helper()
	select {
	case <-w.C():
		require.Fail(t, "a wake-up without a reason")
	default:
	}
}

func watchOn(t testing.TB, b *backend, key string) locker.Watch {
	t.Helper()
	w, err := b.Watch(context.Background(), key)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// subscribers is the number of connections in subscribed state.
func subscribers(t testing.TB, rdb *redis.Client) int {
	t.Helper()
	list, err := rdb.Do(context.Background(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(t, err)
	return strings.Count(list, "id=")
}

// bothProtocols runs a test with the two protocols that Redis speaks.
func bothProtocols(t *testing.T, run func(t *testing.T, protocol func(*redis.Options))) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", n), func(t *testing.T) {
			t.Parallel()
			run(t, func(o *redis.Options) { o.Protocol = n })
		})
	}
}

func TestWatch_everyEndOfAGrantWakes(t *testing.T) {
	t.Parallel()
	bothProtocols(t, func(t *testing.T, protocol func(*redis.Options)) {
		srv := startServer(t)
		a, b := backendOn(t, connect(t, srv, protocol), "p:"), backendOn(t, connect(t, srv, protocol), "p:")
		w := watchOn(t, b, "k")
		other := watchOn(t, b, "other")
		requireQuiet(t, w)

		require.NoError(t, take(t, a, "k", time.Minute).Release(t.Context()))
		awaitWake(t, w)
		g := take(t, a, "k", time.Minute)
		_, err := a.ForceRelease(t.Context(), "k", g.holder)
		require.NoError(t, err)
		awaitWake(t, w)
		require.NoError(t, take(t, b, "k", time.Minute).Release(t.Context()), "its own too")
		awaitWake(t, w)
		requireQuiet(t, other)
	})
}

func TestWatch_noReleaseGoesUnnoticedOnceItHasReturned(t *testing.T) {
	srv := startServer(t)
	a, b := backendOn(t, connect(t, srv), ""), backendOn(t, connect(t, srv), "")
	for i := range 200 {
		key := fmt.Sprint(i)
		g := take(t, a, key, time.Minute)
		w := watchOn(t, b, key)
		require.NoError(t, g.Release(t.Context()))
		awaitWake(t, w)
	}
}

func TestWatch_allShareOneConnectionAndOneSubscriptionPerKey(t *testing.T) {
	srv := startServer(t)
	admin, w := connect(t, srv), &wire{}
	b := backendOn(t, connect(t, srv, w.use), "")
	const keys, each = 100, 3
	watches := make([][]locker.Watch, keys)
	var wg sync.WaitGroup
	for i := range keys {
		watches[i] = make([]locker.Watch, each)
		for j := range each {
			wg.Go(func() { watches[i][j] = watchOn(t, b, fmt.Sprint(i)) })
		}
	}
	wg.Wait()
	require.Equal(t, 1, subscribers(t, admin))
	require.EqualValues(t, 1, w.dials.Load())
	channels, err := admin.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, channels, keys)

	g := take(t, b, "7", time.Minute)
	watches[7][0].Close()
	require.NoError(t, g.Release(t.Context()))
	awaitWake(t, watches[7][1])
	awaitWake(t, watches[7][2])
	requireQuiet(t, watches[7][0])
}

func TestWatch_lingersSoThatAnotherOneCostsNothing(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	admin, w := connect(t, srv), &wire{}
	b := backendOn(t, connect(t, srv, w.use), "")
	for range 100 {
		watch, err := b.Watch(t.Context(), "k")
		require.NoError(t, err)
		watch.Close()
	}
	require.EqualValues(t, 1, w.dials.Load())
	require.Equal(t, 1, calls(t, admin, "subscribe"))
	require.Zero(t, calls(t, admin, "unsubscribe"))

	// A key that nobody watches is dropped, while another one is watched.
	other := watchOn(t, b, "other")
	require.Eventually(t, func() bool { return calls(t, admin, "unsubscribe") == 1 }, soon, 20*time.Millisecond)
	require.Equal(t, 1, subscribers(t, admin))
	g := take(t, b, "other", time.Minute)
	require.NoError(t, g.Release(t.Context()))
	awaitWake(t, other)

	// And with the last one goes the connection.
	other.Close()
	require.Eventually(t, func() bool { return subscribers(t, admin) == 0 }, soon, 20*time.Millisecond)

	w2 := watchOn(t, b, "k") // it can start again
	require.NoError(t, take(t, b, "k", time.Minute).Release(t.Context()))
	awaitWake(t, w2)
}

func TestWatch_aNewConnectionWakesAll(t *testing.T) { // releases in the gap were missed
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connect(t, srv), "")
	one, two := watchOn(t, b, "one"), watchOn(t, b, "two")
	for range 3 {
		require.NoError(t, admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
		awaitWake(t, one)
		awaitWake(t, two)
	}
	require.Equal(t, 1, subscribers(t, admin))
	require.NoError(t, take(t, b, "one", time.Minute).Release(t.Context()))
	awaitWake(t, one)
}

func TestWatch_survivesARestartOfTheServer(t *testing.T) {
	srv := startServer(t)
	w := &wire{}
	b := backendOn(t, connect(t, srv, w.use), "")
	watch := watchOn(t, b, "k")
	require.NoError(t, srv.Kill())

	// While it is down a new Watch fails, soon and with an error that passes.
	start := time.Now()
	_, err := b.Watch(t.Context(), "other")
	require.Error(t, err)
	require.False(t, b.isPermanent(err), "%v", err)
	require.Less(t, time.Since(start), soon)
	requireQuiet(t, watch)

	require.NoError(t, srv.Restart(t.Context()))
	awaitWake(t, watch)
	require.NoError(t, take(t, b, "k", time.Minute).Release(t.Context()))
	awaitWake(t, watch)
}

func TestWatch_doesNotHammerAServerThatIsDown(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	w := &wire{}
	b := backendOn(t, connect(t, srv, w.use), "")
	watch := watchOn(t, b, "k")
	w.refuse.Store(true)
	before := w.dials.Load()
	require.NoError(t, connect(t, srv).ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	time.Sleep(2 * time.Second) // what is measured is what happens in this time
	dials := w.dials.Load() - before
	require.GreaterOrEqual(t, dials, int64(2))
	require.LessOrEqual(t, dials, int64(15))
	w.refuse.Store(false)
	awaitWake(t, watch)
}

func TestWatch_noticesAConnectionThatHasGoneSilent(t *testing.T) {
	t.Parallel()
	bothProtocols(t, func(t *testing.T, protocol func(*redis.Options)) {
		srv := startServer(t)
		w := &wire{}
		b := backendOn(t, connect(t, srv, w.use, protocol), "")
		b.listener.beat = 50 * time.Millisecond
		watch := watchOn(t, b, "k")

		// A live one is left alone, however little happens on it.
		admin := connect(t, srv)
		require.Eventually(t, func() bool { return calls(t, admin, "ping") >= 3 }, soon, 10*time.Millisecond)
		require.EqualValues(t, 1, w.dials.Load())
		requireQuiet(t, watch)

		w.deafen()
		awaitWake(t, watch)
		require.EqualValues(t, 2, w.dials.Load())
		require.NoError(t, take(t, b, "k", time.Minute).Release(t.Context()))
		awaitWake(t, watch)
	})
}

func TestWatch_frozenServer(t *testing.T) {
	srv := startServer(t)
	b := backendOn(t, connect(t, srv, func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond }), "")
	b.listener.beat = 50 * time.Millisecond
	watch := watchOn(t, b, "k")
	require.NoError(t, srv.Pause())

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := b.Watch(ctx, "other")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	start := time.Now()
	_, err = b.Watch(t.Context(), "another")
	require.Error(t, err, "it does not wait for ever")
	require.False(t, b.isPermanent(err))
	require.Less(t, time.Since(start), soon)
	start = time.Now()
	watch.Close()
	require.Less(t, time.Since(start), 100*time.Millisecond)

	require.NoError(t, srv.Resume())
	require.Eventually(t, func() bool {
		w, err := b.Watch(t.Context(), "another")
		if err == nil {
			w.Close()
		}
		return err == nil
	}, soon, 10*time.Millisecond)
}

func TestWatch_doesNotWaitForEverForAConnection(t *testing.T) {
	srv := startServer(t)
	b := backendOn(t, connect(t, srv, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second }), "")
	b.listener.beat = 20 * time.Millisecond
	require.NoError(t, srv.Pause()) // the connection is accepted, its greeting is not answered
	start := time.Now()
	_, err := b.Watch(t.Context(), "k")
	require.Error(t, err)
	require.Less(t, time.Since(start), time.Second)
	require.NoError(t, srv.Resume())
}

func TestWatch_closeOfTheBackendEndsEverything(t *testing.T) {
	srv := startServer(t)
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen %v", frozen), func(t *testing.T) {
			w := &wire{}
			rdb := connect(t, srv, w.use)
			b, err := newBackend(rdb, &Config{})
			require.NoError(t, err)
			watchOn(t, b, "k")
			pending := make(chan error, 1)
			if frozen {
				require.NoError(t, srv.Pause())
				defer srv.Resume()
				sent := w.writes.Load()
				go func() {
					_, err := b.Watch(context.Background(), "other")
					pending <- err
				}()
				require.Eventually(t, func() bool { return w.writes.Load() > sent }, soon, time.Millisecond)
			} else {
				pending <- locker.ErrClosed
			}
			require.NoError(t, b.Close(context.Background()))
			require.ErrorIs(t, <-pending, locker.ErrClosed)
			require.Zero(t, w.open())
			_, err = b.Watch(t.Context(), "k")
			require.ErrorIs(t, err, locker.ErrClosed)
			require.NoError(t, b.Close(context.Background()), "twice is once")
		})
	}
}

func TestWatch_manyOnesComeAndGo(t *testing.T) { // C55
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connect(t, srv), "")
	b.listener.beat = 5 * time.Millisecond
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if i%3 == 0 {
					cancel()
				}
				w, err := b.Watch(ctx, fmt.Sprint((n+i)%5))
				cancel()
				if err == nil {
					w.Close()
				}
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return subscribers(t, admin) == 0 }, soon, 5*time.Millisecond)
	keys, err := admin.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Empty(t, keys, "waiting leaves nothing in the store")
}
