package redislock

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.Leaving...) }

// soon is how long a test waits for what is due at once.
const soon = 5 * time.Second

// startServer starts a private Redis for the test.
func startServer(t testing.TB, settings ...string) *testenv.Redis {
	t.Helper()
	return startWith(t, &testenv.RedisConfig{Settings: settings})
}

func startWith(t testing.TB, cfg *testenv.RedisConfig) *testenv.Redis {
	t.Helper()
	srv, err := testenv.StartRedis(context.Background(), cfg)
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	return srv
}

// startCluster starts a cluster of one node, which serves all slots.
func startCluster(t testing.TB) *testenv.Redis {
	t.Helper()
	srv := startServer(t, "cluster-enabled yes")
	addSlots(t, connect(t, srv))
	return srv
}

// addSlots makes a cluster of one node.
func addSlots(t testing.TB, rdb *redis.Client) {
	t.Helper()
	require.NoError(t, rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, slots-1).Err())
	require.Eventually(t, func() bool {
		info, err := rdb.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, soon, 5*time.Millisecond)
}

// connect makes a client that the test's end closes. Options can be changed by
// set; by default they are go-redis' own, save that no request goes out unasked.
func connect(t testing.TB, srv *testenv.Redis, set ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := &redis.Options{
		Addr:                     srv.Addr(),
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, f := range set {
		f(opts)
	}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// backendOn makes a backend that the test's end closes.
func backendOn(t testing.TB, rdb redis.UniversalClient, prefix string) *backend {
	t.Helper()
	b, err := newBackend(rdb, &Config{Prefix: prefix})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

func request(key string, ttl time.Duration) locker.Request {
	return locker.Request{Key: key, Owner: uuid.NewString(), TTL: ttl}
}

// take acquires a free key.
func take(t testing.TB, b *backend, key string, ttl time.Duration) *grant {
	t.Helper()
	g, err := b.TryAcquire(context.Background(), request(key, ttl))
	require.NoError(t, err)
	return g.(*grant)
}

func requireLost(t testing.TB, err error, reason locker.Reason) {
	t.Helper()
	var lost *locker.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, reason, lost.Reason)
}

func requireHeld(t testing.TB, b *backend, key string) *locker.HeldError {
	t.Helper()
	g, err := b.TryAcquire(context.Background(), request(key, time.Minute))
	require.Nil(t, g)
	var held *locker.HeldError
	require.ErrorAs(t, err, &held)
	return held
}

// requireFree takes the key and gives it back.
func requireFree(t testing.TB, b *backend, key string) {
	t.Helper()
	require.NoError(t, take(t, b, key, time.Minute).Release(context.Background()))
}

// calls is how often the server has run the command, inside of scripts included.
func calls(t testing.TB, rdb *redis.Client, command string) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	_, rest, ok := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !ok {
		return 0
	}
	number, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(number)
	require.NoError(t, err)
	return n
}

// wire stands between a client and its server, as the client's Dialer. It counts,
// and does to connections what networks do.
type wire struct {
	dials    atomic.Int64
	writes   atomic.Int64 // each of them one request or one pipeline
	requests atomic.Int64 // commands in them

	// dropReplies is how many of the next requests that contain the text are
	// answered by the end of the connection, after the server has run them.
	dropReplies atomic.Int64
	containing  atomic.Value // string

	// refuse makes dialling fail.
	refuse atomic.Bool

	// delay is what a reply is late by at most, in nanoseconds.
	delay atomic.Int64

	mu    sync.Mutex
	conns map[*wireConn]struct{}
}

func (w *wire) use(o *redis.Options) { o.Dialer = w.dial }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.dials.Add(1)
	if w.refuse.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: io.ErrClosedPipe}
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: conn, w: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = make(map[*wireConn]struct{})
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// open is the number of connections that are not closed.
func (w *wire) open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// deafen makes the connections of now keep quiet from here on: what is sent is
// accepted, and nothing comes back.
func (w *wire) deafen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.deaf.Store(true)
	}
}

// drop loses the replies to the next n requests that contain text.
func (w *wire) drop(n int64, text string) {
	w.containing.Store(text)
	w.dropReplies.Store(n)
}

type wireConn struct {
	net.Conn
	w     *wire
	armed atomic.Bool
	deaf  atomic.Bool
}

func (c *wireConn) Write(p []byte) (int, error) {
	c.w.writes.Add(1)
	c.w.requests.Add(int64(bytes.Count(p, []byte("\r\n*"))) + 1)
	if text, _ := c.w.containing.Load().(string); text != "" && bytes.Contains(p, []byte(text)) {
		if c.w.dropReplies.Add(-1) >= 0 {
			c.armed.Store(true)
		}
	}
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if most := c.w.delay.Load(); most > 0 {
			time.Sleep(time.Duration(rand.Int64N(most)))
		}
		switch {
		case c.armed.Load(): // the server has run it
			_ = c.Close()
			return 0, io.EOF
		case err != nil:
			return n, err
		case !c.deaf.Load():
			return n, nil
		}
	}
}

func (c *wireConn) Close() error {
	c.w.mu.Lock()
	delete(c.w.conns, c)
	c.w.mu.Unlock()
	return c.Conn.Close()
}

// pipelines counts a client's single commands and pipelines.
type pipelines struct{ single, piped atomic.Int64 }

func (h *pipelines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.single.Add(1)
		return next(ctx, cmd)
	}
}

func (h *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.piped.Add(1)
		return next(ctx, cmds)
	}
}
