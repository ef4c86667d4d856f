package redislock

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// warned makes an observer, and a channel of the warnings that it is told.
func warned() (func(locker.Event), <-chan string) {
	warnings := make(chan string, 100)
	return func(e locker.Event) {
		if e.Kind == locker.EventWarning {
			warnings <- e.Err.Error()
		}
	}, warnings
}

func await(t *testing.T, warnings <-chan string) string {
	t.Helper()
	select {
	case w := <-warnings:
		return w
	case <-time.After(soon):
		require.Fail(t, "no warning")
		return ""
	}
}

// examined waits for the examinations under way.
func examined(b *backend) { b.AwaitWarnings(context.Background()) }

func TestWarnings_nameWhatEndangersLocks(t *testing.T) { // C90
	for name, c := range map[string]struct {
		settings []string
		want     []string
	}{
		"kept":             {[]string{"appendonly yes", "maxmemory 100mb"}, nil},
		"snapshots":        {[]string{"save 60 1"}, nil},
		"nothing kept":     {nil, []string{"set appendonly yes"}},
		"evicting":         {[]string{"appendonly yes", "maxmemory 100mb", "maxmemory-policy allkeys-lru"}, []string{"it evicts keys"}},
		"would be evicted": {[]string{"appendonly yes", "maxmemory-policy volatile-ttl"}, []string{"if there were a maxmemory"}},
		"both":             {[]string{"maxmemory 100mb", "maxmemory-policy volatile-lru"}, []string{"volatile-lru", "no save points"}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, c.settings...)
			b := backendOn(t, connect(t, srv), "")
			var got []string
			b.OnWarning(func(err error) { got = append(got, err.Error()) })
			for range 3 {
				requireFree(t, b, "k")
				examined(b)
			}
			require.Len(t, got, len(c.want), "%v", got)
			for i, want := range c.want {
				require.Contains(t, got[i], want)
				require.True(t, strings.HasPrefix(got[i], srv.Addr()+": it "), got[i])
			}
		})
	}
}

func TestWarnings_comeThroughTheObserverOnceAndCostTwoRequests(t *testing.T) {
	srv := startServer(t)
	admin := connect(t, srv)
	observe, warnings := warned()
	w := &wire{}
	l := lockerOn(t, connect(t, srv, w.use), &Config{Config: locker.Config{Observer: observe}})
	for range 10 {
		require.NoError(t, acquire(t, l, "k").Release(t.Context()))
	}
	require.Contains(t, await(t, warnings), "no save points")
	require.Equal(t, 1, calls(t, admin, "config|get"))
	require.Empty(t, warnings)

	quiet := lockerOn(t, connect(t, srv), nil)
	require.NoError(t, acquire(t, quiet, "k").Release(t.Context()))
	require.Equal(t, 1, calls(t, admin, "config|get"), "without an observer nothing is asked")
}

// warnedBriefly uses a Locker as a short-lived program does, and returns what it was warned of.
func warnedBriefly(t *testing.T, rdb redis.UniversalClient, use func(locker.Locker)) string {
	t.Helper()
	observe, warnings := warned()
	l, err := New(rdb, &Config{Config: locker.Config{Observer: observe}})
	require.NoError(t, err)
	use(l)
	require.NoError(t, l.Close(t.Context()))
	var all []string
	for len(warnings) > 0 {
		all = append(all, <-warnings)
	}
	return strings.Join(all, "\n")
}

func TestWarnings_aProgramThatEndsSoonGetsThem(t *testing.T) {
	srv := startServer(t, "appendonly yes", "maxmemory 100mb", "maxmemory-policy allkeys-lru")
	w := &wire{}
	w.delay.Store(int64(20 * time.Millisecond)) // INFO's answer is later than the release's
	for range 10 {
		got := warnedBriefly(t, connect(t, srv, w.use), func(l locker.Locker) {
			require.NoError(t, acquire(t, l, "k").Release(t.Context()))
		})
		require.Contains(t, got, "it evicts keys")
	}
}

func TestWarnings_aReplicaIsNamed(t *testing.T) {
	_, replica := startReplicated(t)
	for range 10 {
		got := warnedBriefly(t, connect(t, replica), func(l locker.Locker) {
			_, err := l.TryAcquire(t.Context(), "k")
			require.ErrorContains(t, err, "READONLY")
		})
		require.Contains(t, got, "it is a replica")
	}
}

func TestWarnings_moreReplicasThanAreWaitedFor(t *testing.T) { // C89
	master, _ := startReplicated(t)
	second, err := testenv.StartReplica(t.Context(), master, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.Stop()) })
	b := replicated(t, connect(t, master))
	var got []string
	b.OnWarning(func(err error) { got = append(got, err.Error()) })
	requireFree(t, b, "k")
	examined(b)
	require.Contains(t, strings.Join(got, "\n"), "it has 2 replicas and writes wait for 1")
}

func TestWarnings_replicasThatNoWriteWaitsFor(t *testing.T) { // C89
	master, replica := startReplicated(t)
	of := func(b *backend) string {
		var got []string
		b.OnWarning(func(err error) { got = append(got, err.Error()) })
		g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
		if err == nil {
			require.NoError(t, g.Release(t.Context()))
		}
		examined(b)
		return strings.Join(got, "\n")
	}
	require.Contains(t, of(backendOn(t, connect(t, master), "")), "it has replicas (1) and writes wait for none of them")
	require.NotContains(t, of(replicated(t, connect(t, master))), "replicas", "all are waited for")

	second, err := testenv.StartReplica(t.Context(), master, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.Stop()) })
	middle := connect(t, replica)
	host, port, _ := net.SplitHostPort(replica.Addr())
	require.NoError(t, connect(t, second).ReplicaOf(t.Context(), host, port).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(middle.Info(t.Context(), "replication").Val(), "connected_slaves:1")
	}, 3*soon, 10*time.Millisecond)
	got := of(backendOn(t, middle, ""))
	require.Contains(t, got, "it is a replica")
	require.NotContains(t, got, "writes wait", "nobody waits there")
}

func TestWarnings_aDatabaseThatIsNotThereIsNotTakenForPermissions(t *testing.T) {
	srv := startServer(t, "requirepass hunter2")
	rdb := connect(t, srv, func(o *redis.Options) { o.DB, o.Password = 99, "hunter2" })
	got := warnedBriefly(t, rdb, func(l locker.Locker) {
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorContains(t, err, "out of range")
	})
	require.Contains(t, got, "INFO: ERR DB index is out of range")
	require.NotContains(t, got, "hunter2")
}

func TestWarnings_whatMayNotBeAskedIsSaid(t *testing.T) { // C85
	srv := startServer(t)
	for rights, want := range map[string]string{
		"":                   "cannot be told: INFO: NOPERM",
		" +info":             "cannot be told: CONFIG GET: NOPERM",
		" +info +config|get": "no save points",
	} {
		observe, warnings := warned()
		l := lockerOn(t, connectAs(t, srv, documentedACL+rights), &Config{Prefix: "app:", Config: locker.Config{Observer: observe}})
		require.NoError(t, acquire(t, l, "k").Release(t.Context()))
		require.Contains(t, await(t, warnings), want)
		require.NoError(t, l.Close(t.Context()))
		require.Empty(t, warnings)
	}
}

func TestWarnings_ofEveryMasterOnce(t *testing.T) { // C83
	c, err := testenv.StartCluster(t.Context(), nil)
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	b := backendOn(t, rdb, "")
	b.examiner.pause = 0
	seen := make(map[string]struct{}) // servers
	told := make(map[string]int)
	b.OnWarning(func(err error) {
		addr, _, _ := strings.Cut(err.Error(), ": ")
		seen[addr] = struct{}{}
		told[err.Error()]++
	})
	for range 3 {
		requireFree(t, b, "k")
		examined(b)
	}
	require.Len(t, seen, 3)

	// A new master is looked at, and of the others nothing is said again.
	old, err := c.MasterFor(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, old.Kill())
	require.Eventually(t, func() bool {
		g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
		if err == nil {
			err = g.Release(t.Context())
		}
		examined(b)
		return err == nil && len(seen) == 4
	}, 3*soon, 10*time.Millisecond)
	for warning, n := range told {
		require.Equal(t, 1, n, warning)
	}
}

func TestWarnings_aServerThatHangsHoldsUpNobody(t *testing.T) {
	srv := startServer(t)
	w := &wire{}
	rdb := connect(t, srv, w.use, func(o *redis.Options) { o.ReadTimeout = 3 * time.Second })
	b, err := newBackend(rdb, &Config{})
	require.NoError(t, err)
	b.OnWarning(func(error) { t.Error("there was no answer") })
	require.NoError(t, rdb.Ping(t.Context()).Err())
	require.NoError(t, srv.Pause())
	defer srv.Resume()
	start := time.Now()
	b.examiner.answered()
	require.Less(t, time.Since(start), time.Second)
	over, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start = time.Now()
	_ = b.Close(over)
	require.Less(t, time.Since(start), 1500*time.Millisecond)
	examined(b)
	require.NoError(t, rdb.Close())
}
