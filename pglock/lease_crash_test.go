package pglock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Also where the role has chosen to lose what was committed last.
func TestLease_outlivesACrashOfTheServer(t *testing.T) { // G1, C127
	srv := startServer(t, "synchronous_commit = off", "wal_writer_delay = '10s'")
	pool := connect(t, srv.URL())
	b := leaseOn(t, pool)
	const crashes = 20
	var last uint64
	for i := range crashes {
		req := request("k", time.Hour)
		g := take(t, b, req)
		if i%2 == 1 {
			_, err := b.Extend(t.Context(), g, 2*time.Hour)
			require.NoError(t, err)
		}
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Restart(t.Context()))
		pool.Reset() // its connections are gone
		held := requireHeld(t, b, "k")
		require.Equal(t, req.Owner, held.Holder, "crash %d", i)
		require.Equal(t, i%2 == 1, held.Remaining > 90*time.Minute, "crash %d: the last extension", i)
		require.Greater(t, g.Token(), last)
		last = g.Token()
		require.NoError(t, g.Release(t.Context()))
	}
}
