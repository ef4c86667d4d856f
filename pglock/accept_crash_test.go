package pglock

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// A token that was handed out is not taken back by a crash of the server right after it,
// also where the role leaves the disk to later. With these settings that is for ever.
func TestCrash_tokensRiseOverAKilledServer(t *testing.T) { // G3, C127
	t.Parallel()
	const crashes = 3 // the soak has more
	for _, mode := range []string{"advisory", "row", "lease"} {
		for _, commit := range []string{"on", "off"} {
			t.Run(mode+" with synchronous_commit "+commit, func(t *testing.T) {
				t.Parallel()
				srv := startServer(t, "wal_writer_delay = '10s'")
				url, err := srv.AddRole(t.Context(), srv.URL(), "app", "secret", "SUPERUSER")
				require.NoError(t, err)
				require.NoError(t, srv.Exec(t.Context(), "ALTER ROLE app SET synchronous_commit = "+commit))
				l := openOn(t, url, mode, &locker.OpenConfig{Config: locker.Config{TTL: 200 * time.Millisecond}})
				pool := connect(t, srv.URL())
				var killed []time.Duration // after the grant
				rose := 0
				for i := range crashes {
					require.NoError(t, acquire(t, l, "another").Release(t.Context())) // it has its connections
					before, at := killAfterGrant(t, srv, pool, l)
					killed = append(killed, at)
					// What is left of the server may still have its memory.
					require.Eventually(t, func() bool { return srv.Restart(t.Context()) == nil }, soon, 50*time.Millisecond)
					pool.Reset()
					after := acquire(t, l, "k")
					if assert.Greater(t, after.Token(), before, "crash %d", i) {
						rose++
					}
					require.NoError(t, after.Release(t.Context()))
				}
				t.Logf("the server killed %v after a grant: the next token is larger, %d of %d", killed, rose, crashes)
			})
		}
	}
}

// killAfterGrant takes a lock and kills the server at once, and what of it is known to be able
// to write. It returns the token, and after how long the last signal was sent.
func killAfterGrant(t *testing.T, srv *testenv.Postgres, pool *pgxpool.Pool, l locker.Locker) (token uint64, at time.Duration) {
	t.Helper()
	var processes []*os.Process
	for _, pid := range append([]int{srv.PID()}, value[[]int](t, pool, "SELECT array_agg(pid) FROM pg_stat_activity")...) {
		p, err := os.FindProcess(pid)
		require.NoError(t, err)
		processes = append(processes, p)
	}
	k := acquire(t, l, "k")
	granted := time.Now()
	for _, p := range processes {
		_ = p.Kill() // the children end by themselves, too
	}
	at = time.Since(granted)
	require.NoError(t, srv.Kill())
	return k.Token(), at
}

// Such a crash does take back what is not protected: else the test above shows nothing.
func TestCrash_whatIsNotProtectedIsLost(t *testing.T) {
	t.Parallel()
	srv := startServer(t, "wal_writer_delay = '10s'", "synchronous_commit = off")
	require.NoError(t, srv.Exec(t.Context(), "CREATE SEQUENCE s"))
	require.NoError(t, srv.Exec(t.Context(), "CHECKPOINT"))
	pool := connect(t, srv.URL())
	before := value[int](t, pool, "SELECT nextval('s')")
	require.NoError(t, srv.Kill())
	require.NoError(t, srv.Restart(t.Context()))
	pool.Reset()
	require.LessOrEqual(t, value[int](t, pool, "SELECT nextval('s')"), before)
}

// The server ends the sessions of a process that is gone, and who waits in its line has the
// lock then. Others look every second, whatever the TTL. Leases take their time.
func TestCrash_aKilledHolderIsTakenOverAtOnceByWhoWaitsOnTheServer(t *testing.T) { // W1
	for _, mode := range []string{blockedMode, "row"} {
		t.Run(nameOfMode(mode), func(t *testing.T) { // by itself: what else runs would be measured too
			killHolders(t, mode, 1, 100*time.Millisecond)
		})
	}
}

func TestCrash_aKilledHolderIsTakenOverWithinABeat(t *testing.T) { // W1
	t.Parallel()
	killHolders(t, "advisory", 5, 1200*time.Millisecond)
}

// killHolders prints how long it takes to have the key of a killed process, of some
// that are killed together.
func killHolders(t *testing.T, mode string, together int, promise time.Duration) {
	const trials, ttl = 10, 30 * time.Second
	database := newDatabase(t)
	pool := connect(t, database)
	l := openOn(t, database, mode, &locker.OpenConfig{Config: locker.Config{TTL: ttl}})
	var taken figures
	for round := range trials / together {
		var children []*child
		var waits []waiting
		for i := range together {
			key := fmt.Sprint("k", round, " ", i)
			children = append(children, startChild(t, withMode(database, mode), ttl, key, ""))
			waits = append(waits, waitFor(t, l, key))
			if mode == "advisory" {
				awaitMarks(t, pool, Key("", key), 1)
			} else {
				awaitBlocked(t, pool, i+1)
			}
		}
		var killed []time.Time
		for _, c := range children {
			killed = append(killed, time.Now())
			require.NoError(t, c.cmd.Process.Kill())
		}
		for i, c := range children {
			k, at := waits[i].lock(t)
			taken.add(at.Sub(killed[i]))
			assert.Greater(t, k.Token(), c.token)
		}
	}
	taken.print(t, "taken over from a killed process, with a TTL of 30 s,", promise, promise+2*time.Second)
}
