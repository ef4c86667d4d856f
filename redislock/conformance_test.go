package redislock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/redislock"
)

func TestConformance(t *testing.T) {
	s := &store{t: t, connect: func(url string, dial dialer) redis.UniversalClient {
		opts, err := redis.ParseURL(url)
		require.NoError(t, err)
		opts.Dialer = dial
		return redis.NewClient(opts)
	}}
	s.use(func() (*testenv.Redis, error) { return testenv.AnyRedis(t.Context()) })
	conformance.Run(t, s.harness())
}

// One node that serves all slots refuses what a cluster of many would.
func TestConformance_cluster(t *testing.T) {
	s := &store{t: t, connect: func(url string, dial dialer) redis.UniversalClient {
		opts, err := redis.ParseClusterURL(url)
		require.NoError(t, err)
		opts.Dialer = dial
		opts.ContextTimeoutEnabled = true // calls on the caller's goroutine
		return redis.NewClusterClient(opts)
	}}
	s.use(func() (*testenv.Redis, error) {
		srv, err := testenv.StartRedis(t.Context(), &testenv.RedisConfig{
			AppendOnly: true, // locks outlive a crash of the server
			Settings:   []string{"cluster-enabled yes"},
		})
		if err != nil {
			return nil, err
		}
		rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
		defer rdb.Close()
		require.NoError(t, rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
		require.Eventually(t, func() bool {
			info, err := rdb.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok")
		}, 10*time.Second, 5*time.Millisecond)
		return srv, nil
	})
	conformance.Run(t, s.harness())
}

// With a replica that has to acknowledge, every line of the contract holds as well.
func TestConformance_replica(t *testing.T) {
	s := &store{t: t, replicas: 1, connect: func(url string, dial dialer) redis.UniversalClient {
		opts, err := redis.ParseURL(url)
		require.NoError(t, err)
		opts.Dialer = dial
		return redis.NewClient(opts)
	}}
	s.use(func() (*testenv.Redis, error) {
		srv, err := testenv.StartRedis(t.Context(), nil)
		if err != nil {
			return nil, err
		}
		replica, err := testenv.StartReplica(t.Context(), srv, nil)
		if err != nil {
			return nil, errors.Join(err, srv.Stop())
		}
		t.Cleanup(func() { require.NoError(t, replica.Stop()) })
		return srv, nil
	})
	conformance.Run(t, s.harness())
}

// What the suite's child processes are told of the store.
const (
	urlEnv    = "LOCKER_TEST_CONFORMANCE_URL"
	prefixEnv = "LOCKER_TEST_CONFORMANCE_PREFIX"
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// store is a server, and a prefix of this run's own on it.
type store struct {
	t           *testing.T
	connect     func(url string, dial dialer) redis.UniversalClient // nil: the client's own dialer
	server      *testenv.Redis                                      // nil if it is not ours to break
	url, prefix string
	replicas    int
	requests    atomic.Int64
	looker      redis.UniversalClient
}

// use starts the server, or in a child process takes the one of its parent.
func (s *store) use(start func() (*testenv.Redis, error)) {
	s.url, s.prefix = os.Getenv(urlEnv), os.Getenv(prefixEnv)
	if s.url == "" {
		srv, err := start()
		if testenv.Skippable(err) {
			s.t.Skip(err)
		}
		require.NoError(s.t, err)
		s.t.Cleanup(func() { require.NoError(s.t, srv.Stop()) })
		s.url, s.prefix = srv.URL(), "conformance-"+rand.Text()+":"
		if srv.PID() != 0 {
			s.server = srv
		}
	}
	s.looker = s.client(nil)
}

func (s *store) harness() conformance.Harness {
	return conformance.Harness{
		Open:     func(context.Context) (locker.Locker, error) { return s.open(nil) },
		OpenVia:  func(_ context.Context, net *faultnet.Network) (locker.Locker, error) { return s.open(net.Dial) },
		Server:   s.breakable(),
		TTL:      conformance.DefaultTTL / 2,
		Names:    s.names,
		Env:      []string{urlEnv + "=" + s.url, prefixEnv + "=" + s.prefix},
		Requests: s.requests.Load,
	}
}

func (s *store) open(dial dialer) (locker.Locker, error) {
	rdb := s.client(dial)
	rdb.AddHook(counter{&s.requests})
	return redislock.New(rdb, &redislock.Config{Prefix: s.prefix, Replicas: s.replicas})
}

func (s *store) breakable() *conformance.Server {
	if s.server == nil {
		return nil
	}
	return &conformance.Server{
		Pause:   func(context.Context) error { return s.server.Pause() },
		Resume:  func(context.Context) error { return s.server.Resume() },
		Kill:    func(context.Context) error { return s.server.Kill() },
		Restart: s.server.Restart,
	}
}

func (s *store) client(dial dialer) redis.UniversalClient {
	rdb := s.connect(s.url, dial)
	s.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// names lists keys and channels, without the token counters.
func (s *store) names(ctx context.Context) ([]string, error) {
	var names []string
	for keys := s.looker.Scan(ctx, 0, s.prefix+"*", 0).Iterator(); keys.Next(ctx); {
		if !strings.HasPrefix(keys.Val(), s.prefix+"\x00token") {
			names = append(names, keys.Val())
		}
	}
	channels, err := s.looker.PubSubChannels(ctx, s.prefix+"*").Result()
	return append(names, channels...), err
}

// counter counts the requests of a client. What its subscriptions send does not
// come by.
type counter struct{ n *atomic.Int64 }

func (c counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
