package etcdlock

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// soon bounds what has to happen, on a busy machine.
const soon = 5 * time.Second

func TestMain(m *testing.M) {
	// Tests that run in parallel wait more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, testenv.Leaving...)
}

func started(t testing.TB, err error) {
	t.Helper()
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// startServer starts a server of the test's own. It gives leases of a second.
func startServer(t testing.TB) *testenv.Etcd {
	t.Helper()
	srv, err := testenv.StartEtcd(t.Context(), quick)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	return srv
}

// quick servers hold elections after half a second.
var quick = &testenv.EtcdConfig{Election: 500 * time.Millisecond}

func connect(t testing.TB, addrs ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func backendOn(t testing.TB, c *clientv3.Client, cfg *Config) *backend {
	t.Helper()
	if cfg == nil {
		cfg = &Config{}
	}
	b, err := newBackend(c, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

func lockerOn(t testing.TB, c *clientv3.Client, cfg locker.Config) locker.Locker {
	t.Helper()
	l, err := New(c, &Config{Config: cfg, MinTTL: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	return l
}

func request(key string, ttl time.Duration) locker.Request {
	return locker.Request{Key: key, Owner: uuid.NewString(), TTL: ttl}
}

func take(t testing.TB, b *backend, req locker.Request) *grant {
	t.Helper()
	g, err := b.TryAcquire(context.Background(), req)
	require.NoError(t, err)
	return g.(*grant)
}

func requireLost(t testing.TB, err error, reason locker.Reason) {
	t.Helper()
	var lost *locker.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, reason, lost.Reason)
}

// entries are the names that stand in the store, but for those of leases.
func entries(t testing.TB, c *clientv3.Client) (names []string) {
	t.Helper()
	seen, err := c.Get(context.Background(), DefaultPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range seen.Kvs {
		if !strings.HasPrefix(string(kv.Key), DefaultPrefix+internal) {
			names = append(names, string(kv.Key))
		}
	}
	return names
}

// leases are those that the server has.
func leases(t testing.TB, c *clientv3.Client) []clientv3.LeaseStatus {
	t.Helper()
	seen, err := c.Leases(context.Background())
	require.NoError(t, err)
	return seen.Leases
}
