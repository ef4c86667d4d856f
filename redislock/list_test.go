package redislock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func list(t testing.TB, b *backend) map[string]locker.Holding {
	t.Helper()
	seen := make(map[string]locker.Holding)
	require.NoError(t, b.List(context.Background(), func(key string, h locker.Holding) bool {
		seen[key] = h
		return true
	}))
	return seen
}

func TestList_showsLocksUnderThePrefixAndNothingElse(t *testing.T) {
	rdb := connect(t, startServer(t))
	for _, prefix := range []string{"", "p:", `[p]*?\`, "p{x}"} {
		t.Run(prefix, func(t *testing.T) {
			ctx := t.Context()
			require.NoError(t, rdb.FlushDB(ctx).Err())
			b, longer := backendOn(t, rdb, prefix), backendOn(t, rdb, prefix+"more:")
			require.Empty(t, list(t, b))
			held := map[string]*grant{}
			for _, key := range []string{"k", "*", "a}b", "more:", " "} {
				held[key] = take(t, b, key, time.Minute)
			}
			requireFree(t, longer, "freed") // leaves a counter
			other := take(t, longer, "k", time.Minute)
			held["more:k"] = other

			require.NoError(t, rdb.Set(ctx, prefix+"no expiry", "v", 0).Err())
			require.NoError(t, rdb.HSet(ctx, prefix+"hash", "f", 1).Err())
			require.NoError(t, rdb.Expire(ctx, prefix+"hash", time.Minute).Err())
			require.NoError(t, rdb.Set(ctx, prefix+"not \xff text", "v", time.Minute).Err())
			require.NoError(t, rdb.Set(ctx, prefix+strings.Repeat("k", 513), "v", time.Minute).Err())
			if prefix != "" {
				require.NoError(t, rdb.Set(ctx, prefix, "v", time.Minute).Err()) // it stands for no key
				require.NoError(t, rdb.Set(ctx, "x"+prefix+"k", "v", time.Minute).Err())
				require.NoError(t, rdb.Set(ctx, "ppk", "v", time.Minute).Err()) // what the pattern would match
			}

			seen := list(t, b)
			require.Len(t, seen, len(held))
			for key, g := range held {
				require.Equal(t, g.holder, seen[key].Holder, key)
				require.InDelta(t, time.Minute, seen[key].Remaining, float64(5*time.Second))
			}
			seen = list(t, longer)
			require.Len(t, seen, 1)
			require.Equal(t, other.holder, seen["k"].Holder)
		})
	}
}

func TestList_pagesAndReadsEachPageInOneRequest(t *testing.T) {
	const locks = 3000
	srv := startServer(t)
	w := &wire{}
	b := backendOn(t, connect(t, srv, w.use), "p:")
	admin := connect(t, srv)
	pipe := admin.Pipeline()
	for i := range locks {
		pipe.Set(t.Context(), fmt.Sprintf("p:%d", i), "v", time.Minute)
		pipe.Set(t.Context(), fmt.Sprintf("other:%d", i), "v", time.Minute)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	require.Len(t, list(t, b), locks) // also loads the script
	writes, scans := w.writes.Load(), calls(t, admin, "scan")
	require.Len(t, list(t, b), locks)
	scans = calls(t, admin, "scan") - scans
	require.InDelta(t, 2*locks/page, scans, 3)
	// A pipeline may take several writes to the socket.
	require.LessOrEqual(t, w.writes.Load()-writes, int64(scans*20))
	require.Zero(t, admin.Exists(t.Context(), "p:\x00token").Val(), "it changes nothing")

	// It stops when told to, and between two requests when ctx ends.
	n := 0
	require.NoError(t, b.List(t.Context(), func(string, locker.Holding) bool { n++; return n < 7 }))
	require.Equal(t, 7, n)
	ctx, cancel := context.WithCancel(t.Context())
	scans = calls(t, admin, "scan")
	require.ErrorIs(t, b.List(ctx, func(string, locker.Holding) bool { cancel(); return true }), context.Canceled)
	require.Equal(t, 1, calls(t, admin, "scan")-scans)
}

func TestList_onACluster(t *testing.T) { // C83
	srv := startCluster(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{srv.Addr()}})
	t.Cleanup(func() { _ = rdb.Close() })
	b := backendOn(t, rdb, "p:")
	held := map[string]*grant{}
	for i := range 50 {
		key := fmt.Sprint(i)
		held[key] = take(t, b, key, time.Minute)
	}
	require.NoError(t, connect(t, srv).ScriptFlush(t.Context()).Err())
	seen := list(t, b)
	require.Len(t, seen, len(held))
	for key, g := range held {
		require.Equal(t, g.holder, seen[key].Holder)
	}
}

func TestList_outageIsAnError(t *testing.T) {
	srv := startServer(t)
	b := backendOn(t, connect(t, srv, func(o *redis.Options) { o.MaxRetries = -1 }), "")
	require.NoError(t, srv.Kill())
	require.Error(t, b.List(t.Context(), func(string, locker.Holding) bool { return true }))
}
