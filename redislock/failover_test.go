package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/redislock"
)

// topology is a deployment in which another server takes a master's place.
type topology struct {
	url  string
	data []*testenv.Redis

	master func(ctx context.Context, key string) (*testenv.Redis, error) // who serves the key
	await  func(ctx context.Context, key string, old *testenv.Redis) (*testenv.Redis, error)
	settle func(ctx context.Context) error // waits until all have what was written
}

func startSentinel(t *testing.T) topology {
	s, err := testenv.StartSentinel(t.Context(), nil)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return topology{
		url:    s.URL(),
		data:   s.Data(),
		master: func(ctx context.Context, _ string) (*testenv.Redis, error) { return s.Master(ctx) },
		await: func(ctx context.Context, _ string, old *testenv.Redis) (*testenv.Redis, error) {
			return s.AwaitMaster(ctx, old)
		},
		settle: s.AwaitReplicas,
	}
}

func startNodes(t *testing.T) topology {
	c, err := testenv.StartCluster(t.Context(), nil)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return topology{url: c.URL(), data: c.Nodes(), master: c.MasterFor, await: c.AwaitMaster, settle: c.AwaitOK}
}

func started(t *testing.T, err error) {
	t.Helper()
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// failures are the ways in which a master ends.
var failures = map[string]func(*testenv.Redis) error{
	"killed": (*testenv.Redis).Kill,
	"paused": (*testenv.Redis).Pause,
}

var topologies = map[string]func(*testing.T) topology{
	"sentinel": startSentinel,
	"cluster":  startNodes,
}

// everyFailover runs a test once for each way in which another server becomes the
// master.
func everyFailover(t *testing.T, run func(t *testing.T, top topology, fail func(*testenv.Redis) error)) {
	for name, start := range topologies {
		for how, fail := range failures {
			t.Run(name+", master "+how, func(t *testing.T) { run(t, start(t), fail) })
		}
	}
}

func openURL(t *testing.T, url string, cfg *locker.OpenConfig) locker.Locker {
	t.Helper()
	l, err := locker.OpenWith(t.Context(), url, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = l.Close(ctx)
	})
	return l
}

// subscribed is how many connections listen to the channel, on all servers that
// answer.
func subscribed(t *testing.T, data []*testenv.Redis, channel string) (n int64) {
	for _, r := range data {
		rdb := redis.NewClient(&redis.Options{Addr: r.Addr(), ReadTimeout: 100 * time.Millisecond, MaxRetries: -1, DialerRetries: 1})
		counts, err := rdb.PubSubNumSub(t.Context(), channel).Result()
		if err == nil {
			n += counts[channel]
		}
		_ = rdb.Close()
	}
	return n
}

// awaitServed tells when another server serves the key.
func awaitServed(ctx context.Context, top topology, key string, old *testenv.Redis) <-chan time.Time {
	served := make(chan time.Time, 1)
	go func() {
		_, _ = top.await(ctx, key, old) // if it fails, so does the acquire
		served <- time.Now()
	}()
	return served
}

// requireSoonAfter checks that the grant, which took so long from start, came soon
// after the servers had a new master: how long they need for that is not ours to
// decide. With the settings of these tests it is some three seconds.
func requireSoonAfter(t *testing.T, took time.Duration, start, served time.Time) {
	t.Helper()
	theirs := served.Sub(start)
	require.Less(t, took, max(theirs+2*time.Second, 5*time.Second), "there was a new master after %v", theirs)
}

func TestFailover_isFollowedWithoutANewClient(t *testing.T) { // W4, W1, C15, C89
	everyFailover(t, func(t *testing.T, top topology, fail func(*testenv.Redis) error) {
		const key, other = "{k}", "{k}/other" // of one slot
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, b := openURL(t, top.url+"?prefix=p:", nil), openURL(t, top.url+"?prefix=p:", nil)
		holder, err := a.Acquire(ctx, key, locker.WithTTL(time.Minute))
		require.NoError(t, err)
		free, err := b.Acquire(ctx, "{k}/free") // connects
		require.NoError(t, err)
		require.NoError(t, free.Release(ctx))

		// Somebody waits, and hears by push.
		got := make(chan error, 1)
		var woken locker.Lock
		go func() {
			var err error
			woken, err = b.Acquire(ctx, key, locker.WithTTL(time.Minute))
			got <- err
		}()
		const channel = "p:\x00wake:" + key
		require.Eventually(t, func() bool { return subscribed(t, top.data, channel) == 1 }, 10*time.Second, 10*time.Millisecond)

		require.NoError(t, top.settle(ctx))
		old, err := top.master(ctx, key)
		require.NoError(t, err)
		start := time.Now()
		require.NoError(t, fail(old))
		served := awaitServed(ctx, top, key, old)
		k, err := a.Acquire(ctx, other)
		require.NoError(t, err)
		took := time.Since(start)
		t.Logf("the next grant came %v after the failure", took.Round(time.Millisecond))
		requireSoonAfter(t, took, start, <-served)
		require.Greater(t, k.Token(), holder.Token())
		require.NoError(t, k.Release(ctx))
		select {
		case err := <-got:
			require.NoError(t, err)
			require.Fail(t, "the key was given to a second holder")
		default:
		}

		// The subscription follows, and the waiter is woken by it, long before the
		// third of the lease after which it would look by itself.
		var live []*testenv.Redis
		for _, r := range top.data {
			if r != old {
				live = append(live, r)
			}
		}
		require.Eventually(t, func() bool { return subscribed(t, live, channel) == 1 }, 15*time.Second, 10*time.Millisecond)
		t.Logf("the subscription was back %v after the failure", time.Since(start).Round(time.Millisecond))
		require.NoError(t, holder.Err())
		released := time.Now()
		require.NoError(t, holder.Release(ctx))
		select {
		case err := <-got:
			require.NoError(t, err)
		case <-time.After(5 * time.Second):
			require.Fail(t, "the waiter was not woken")
		}
		t.Logf("the waiter had the key %v after the release", time.Since(released).Round(time.Millisecond))
		require.Greater(t, woken.Token(), k.Token())
		require.NoError(t, woken.Release(ctx))
	})
}

// Of a client with the driver's own settings, only what it is told about is known.
func TestFailover_isFollowedByAClientWithTheDriversSettings(t *testing.T) { // W4, C15
	c, err := testenv.StartCluster(t.Context(), nil)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	defer rdb.Close()
	l, err := redislock.New(rdb, nil)
	require.NoError(t, err)
	defer l.Close(context.Background())
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
	old, err := c.MasterFor(t.Context(), "k")
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, old.Kill())
	served := awaitServed(t.Context(), topology{await: c.AwaitMaster}, "k", old)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k, err = l.Acquire(ctx, "k")
	require.NoError(t, err)
	took := time.Since(start)
	t.Logf("the next grant came %v after the failure", took.Round(time.Millisecond))
	requireSoonAfter(t, took, start, <-served)
	require.NoError(t, k.Release(ctx))
}

// patience is that of clients that Open makes, with a dial or an answer.
const patience = time.Second

// A machine is gone, and with it the master and the one sentinel that was talked to.
func TestFailover_theSentinelMayHangToo(t *testing.T) { // W4, C15
	s, err := testenv.StartSentinel(t.Context(), nil)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	first := s.Sentinels()[0] // it tells of the others
	l := openURL(t, "redis-sentinel://"+first.Addr()+"/"+s.MasterName(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k, err := l.Acquire(ctx, "k")
	require.NoError(t, err)
	require.NoError(t, k.Release(ctx))
	old, err := s.Master(ctx)
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, first.Pause())
	require.NoError(t, old.Pause())
	served := awaitServed(ctx, topology{await: func(ctx context.Context, _ string, old *testenv.Redis) (*testenv.Redis, error) {
		return s.AwaitMaster(ctx, old)
	}}, "k", old)
	k, err = l.Acquire(ctx, "k")
	require.NoError(t, err)
	took := time.Since(start)
	t.Logf("the next grant came %v after the failure", took.Round(time.Millisecond))
	requireSoonAfter(t, took, start, (<-served).Add(2*patience)) // for the sentinel
	require.NoError(t, k.Release(ctx))
}
