package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// bothRetrySettings runs a test with go-redis' own retries on and off. They have
// to make no difference.
func bothRetrySettings(t *testing.T, run func(t *testing.T, retries func(*redis.Options))) {
	for _, n := range []int{0, -1} {
		t.Run(fmt.Sprintf("MaxRetries %d", n), func(t *testing.T) {
			run(t, func(o *redis.Options) { o.MaxRetries = n })
		})
	}
}

func TestTryAcquire_lostReplyIsNeverHeldByItself(t *testing.T) { // C01
	bothRetrySettings(t, func(t *testing.T, retries func(*redis.Options)) {
		srv := startServer(t)
		w, admin := &wire{}, connect(t, srv)
		b := backendOn(t, connect(t, srv, w.use, retries), "")
		requireFree(t, b, "warm")

		// The outcome is unknown, and the undo frees the key at once. Nothing is
		// sent twice: a late first sending could take the key for nobody.
		sent := calls(t, admin, "evalsha")
		w.drop(1, acquireScript.sha)
		unknown, err := b.TryAcquire(t.Context(), request("k", 30*time.Second))
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.NotNil(t, unknown)
		require.Equal(t, 1, calls(t, admin, "evalsha")-sent)
		require.EqualValues(t, 1, admin.Exists(t.Context(), "k").Val())
		require.NoError(t, unknown.Release(t.Context()))
		requireFree(t, b, "k")
	})
}

func TestTryAcquire_recognisesItsOwnValue(t *testing.T) { // G4, C01
	// A proxy between client and server may send a command again.
	srv := startServer(t)
	b := backendOn(t, connect(t, srv), "")
	req := request("k", 30*time.Second)
	first, err := b.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	again, err := b.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	require.Greater(t, again.Token(), first.Token())
	require.NoError(t, again.Release(t.Context()))
	requireFree(t, b, "k")
}

func TestRelease_isNotSentAgainBehindTheCaller(t *testing.T) { // C19, C21
	bothRetrySettings(t, func(t *testing.T, retries func(*redis.Options)) {
		srv := startServer(t)
		w, admin := &wire{}, connect(t, srv)
		b := backendOn(t, connect(t, srv, w.use, retries), "")
		requireFree(t, b, "warm")
		g := take(t, b, "k", 30*time.Second)

		sent := calls(t, admin, "evalsha")
		w.drop(1, releaseScript.sha)
		err := g.Release(t.Context())
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, locker.ErrLost)
		require.Equal(t, 1, calls(t, admin, "evalsha")-sent)
		requireLost(t, g.Release(t.Context()), locker.ReasonExpired) // the caller knows that it asked twice
	})
}

func TestRenew_lostReplyIsAnErrorThatPasses(t *testing.T) {
	srv := startServer(t)
	w := &wire{}
	b := backendOn(t, connect(t, srv, w.use), "")
	g := take(t, b, "k", 30*time.Second)
	_, err := g.Renew(t.Context(), 30*time.Second)
	require.NoError(t, err)
	w.drop(3, renewScript.sha)
	_, err = g.Renew(t.Context(), 30*time.Second)
	require.ErrorIs(t, err, io.EOF)
	_, err = b.Extend(t.Context(), g, 30*time.Second)
	require.ErrorIs(t, err, io.EOF)
	b.RenewAll(t.Context(), []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
		require.ErrorIs(t, err, io.EOF)
		require.False(t, b.isPermanent(err))
	})
	_, err = g.Renew(t.Context(), 30*time.Second)
	require.NoError(t, err)
	require.NoError(t, g.Release(t.Context()))
}

func TestTryAcquire_nothingTakenIsANilGrant(t *testing.T) { // C03, C06, C09
	srv := startServer(t)
	ctx := t.Context()
	t.Run("refused", func(t *testing.T) {
		w := &wire{}
		w.refuse.Store(true)
		b := backendOn(t, connect(t, srv, w.use, func(o *redis.Options) { o.DialerRetries = 1 }), "")
		g, err := b.TryAcquire(ctx, request("k", time.Minute))
		require.Nil(t, g)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.EqualValues(t, 1, w.dials.Load(), "the Locker waits, not the driver")
		require.False(t, b.isPermanent(err))
	})
	t.Run("no connection to be had", func(t *testing.T) {
		rdb := connect(t, srv, func(o *redis.Options) {
			o.PoolSize, o.MaxActiveConns, o.PoolTimeout = 1, 1, time.Millisecond
		})
		b := backendOn(t, rdb, "")
		busy := rdb.Conn()
		defer busy.Close()
		require.NoError(t, busy.Ping(ctx).Err())
		g, err := b.TryAcquire(ctx, request("k", time.Minute))
		require.Nil(t, g)
		require.ErrorIs(t, err, redis.ErrPoolTimeout)
		require.False(t, b.isPermanent(err))
	})
	t.Run("context over", func(t *testing.T) {
		w := &wire{}
		b := backendOn(t, connect(t, srv, w.use), "")
		over, cancel := context.WithCancel(ctx)
		cancel()
		for range 100 {
			g, err := b.TryAcquire(over, request("k", time.Minute))
			require.Nil(t, g)
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Zero(t, w.dials.Load())
	})
	t.Run("client closed", func(t *testing.T) {
		rdb := connect(t, srv)
		b := backendOn(t, rdb, "")
		require.NoError(t, rdb.Close())
		g, err := b.TryAcquire(ctx, request("k", time.Minute))
		require.Nil(t, g)
		require.ErrorIs(t, err, redis.ErrClosed)
		require.True(t, b.isPermanent(err))
		_, err = b.Watch(ctx, "k")
		require.ErrorIs(t, err, redis.ErrClosed)
	})
	require.Zero(t, connect(t, srv).DBSize(ctx).Val())
}

func TestTryAcquire_frozenServerLeavesTheOutcomeOpen(t *testing.T) { // C02, C06
	for _, byContext := range []bool{true, false} {
		t.Run(fmt.Sprintf("ContextTimeoutEnabled %v", byContext), func(t *testing.T) {
			srv := startServer(t)
			b := backendOn(t, connect(t, srv, func(o *redis.Options) {
				o.ContextTimeoutEnabled = byContext
				o.ReadTimeout = time.Minute
				if !byContext {
					o.ReadTimeout = 300 * time.Millisecond
				}
			}), "")
			requireFree(t, b, "k")
			require.NoError(t, srv.Pause())
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			g, err := b.TryAcquire(ctx, request("k", time.Minute))
			require.Less(t, time.Since(start), soon)
			require.Error(t, err)
			require.NotErrorIs(t, err, locker.ErrHeld)
			require.NotNil(t, g)
			require.NoError(t, srv.Resume())
			// The command was in the server's buffer: it runs, and is undone.
			require.Eventually(t, func() bool { return g.Release(t.Context()) == nil }, soon, time.Millisecond)
			requireFree(t, b, "k")
		})
	}
}

func TestBackend_deadPooledConnectionsDoNotShow(t *testing.T) {
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connect(t, srv), "")
	requireFree(t, b, "k")
	require.NoError(t, admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
	requireFree(t, b, "k")
}

func TestErrors_whatWaitingCures(t *testing.T) {
	b := backendOn(t, redis.NewClient(&redis.Options{}), "")
	defer b.rdb.Close()
	for _, text := range []string{
		"LOADING Redis is loading the dataset in memory",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"CLUSTERDOWN The cluster is down",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"READONLY You can't write against a read only replica.",
		"NOREPLICAS Not enough good replicas to write.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"ERR max number of clients reached",
		"ERR something that nobody has thought of",
		"UNKILLABLE",
	} {
		require.False(t, b.isPermanent(reply(text)), text)
	}
	for _, text := range []string{
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"NOPERM this user has no permissions to access one of the keys used as arguments",
		"ERR The user executing the script can't run this command or subcommand",
		"NOAUTH Authentication required.",
		"WRONGPASS invalid username-password pair or user is disabled.",
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"ERR unknown command 'EVALSHA', with args beginning with: ",
		"ERR Unknown Redis command called from script",
		"ERR wrong number of arguments for 'set' command",
		"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
		"ERR DB index is out of range",
		"DENIED Redis is running in protected mode",
		"MOVED 866 127.0.0.1:7001",
	} {
		require.True(t, b.isPermanent(reply(text)), text)
		require.True(t, b.isPermanent(fmt.Errorf("wrapped: %w", reply(text))), text)
	}
	b.cluster = &redis.ClusterClient{}
	require.False(t, b.isPermanent(reply("MOVED 866 127.0.0.1:7001")), "a slot that moves")
}

func TestErrors_whatMayHaveRun(t *testing.T) {
	for _, err := range []error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, context.Canceled, context.DeadlineExceeded, errors.New("?"),
		&net.OpError{Op: "read", Err: syscall.ETIMEDOUT}, &net.OpError{Op: "write", Err: syscall.EPIPE},
	} {
		require.True(t, mayHaveRun(err), "%v", err)
	}
	for _, err := range []error{
		reply("LOADING ..."), reply("OOM ..."), redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrClosed,
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		fmt.Errorf("wrapped: %w", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}),
		&tls.CertificateVerificationError{Err: errors.New("?")},
	} {
		require.False(t, mayHaveRun(err), "%v", err)
	}
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}
