package etcdlock

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

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
