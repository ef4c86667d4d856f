package pglock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	osexec "os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// psql is a session of it: each line is a query of one value.
type psql struct {
	in  io.WriteCloser
	out chan string
}

func startPSQL(t *testing.T, url string) *psql {
	t.Helper()
	program, err := osexec.LookPath("psql")
	if err != nil {
		started(t, fmt.Errorf("%w: %w", testenv.ErrNotInstalled, err))
	}
	cmd := osexec.Command(program, "-X", "-A", "-t", "-q", url)
	p := &psql{out: make(chan string)}
	p.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.out <- lines.Text()
		}
		close(p.out)
	}()
	t.Cleanup(func() {
		_ = p.in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

func (p *psql) send(t *testing.T, format string, args ...any) {
	t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(t, err)
}

func (p *psql) value(t *testing.T) string {
	t.Helper()
	select {
	case line := <-p.out:
		return line
	case <-time.After(soon):
		t.Fatal("psql does not answer")
		return ""
	}
}

// An operator with psql takes part, both ways.
func TestInterop_psqlAndALockerExcludeEachOther(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	pool := connect(t, database)
	l := openOn(t, database, "advisory&locker_namespace=orders", nil)
	n := Key("orders", "k")
	p := startPSQL(t, database)

	var woken, freed figures
	for range 5 {
		p.send(t, "SELECT 'locked' || pg_advisory_lock(%d);", n)
		require.Equal(t, "locked", p.value(t))
		_, err := l.TryAcquire(t.Context(), "k")
		held := (*locker.HeldError)(nil)
		require.ErrorAs(t, err, &held)
		require.Regexp(t, `^pid \d+ \(psql\)$`, held.Holder)
		w := waitFor(t, l, "k")
		awaitMarks(t, pool, n, 1)
		start := time.Now()
		p.send(t, "SELECT pg_advisory_unlock(%d);", n)
		require.Equal(t, "t", p.value(t))
		k, at := w.lock(t)
		woken.add(at.Sub(start))

		p.send(t, "SELECT pg_try_advisory_lock(%d);", n)
		require.Equal(t, "f", p.value(t))
		p.send(t, "SELECT 'locked' || pg_advisory_lock(%d);", n)
		blocked(t, pool)
		start = time.Now()
		require.NoError(t, k.Release(t.Context()))
		require.Equal(t, "locked", p.value(t))
		freed.add(time.Since(start))
		p.send(t, "SELECT pg_advisory_unlock(%d);", n)
		require.Equal(t, "t", p.value(t))
	}
	woken.print(t, "after psql's unlock a waiter has the lock", 1200*time.Millisecond, 3*time.Second)
	freed.print(t, "after a release psql has the lock", 100*time.Millisecond, time.Second)
}

// Locks are taken on the primary, or not at all.
func TestInterop_noLockIsTakenOnAStandby(t *testing.T) { // C109
	t.Parallel()
	primary := startServer(t)
	standby, err := testenv.StartPostgresStandby(t.Context(), primary)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Stop()) })
	for mode, open := range map[string]func() (locker.Locker, error){
		"advisory": func() (locker.Locker, error) { return New(t.Context(), connect(t, standby.URL()), nil) },
		"row":      func() (locker.Locker, error) { return NewRow(t.Context(), connect(t, standby.URL()), nil) },
		"lease":    func() (locker.Locker, error) { return NewLease(t.Context(), connect(t, standby.URL()), nil) },
	} {
		_, err := open()
		require.Error(t, err, mode)
		t.Logf("%s on a standby: %v", mode, err)
	}
	c := newConnector(connect(t, standby.URL()), time.Second)
	require.False(t, c.endOnServer(t.Context(), &wire{pid: "1", started: "0"}), "nor does it know what has ended")
	c = newConnector(connect(t, primary.URL()), time.Second)
	require.True(t, c.endOnServer(t.Context(), &wire{pid: "1", started: "0"}))
	both := replace(t, primary.URL(), primary.Addr(), standby.Addr()+","+primary.Addr())
	direct := connect(t, primary.URL())
	l := openOn(t, both, "advisory", nil)
	acquire(t, l, "k")
	require.Equal(t, 1, value[int](t, direct, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"))
	acquire(t, openOn(t, both, "row", nil), "k")
	require.Equal(t, 1, value[int](t, direct, "SELECT count(*) FROM locker_row JOIN pg_stat_activity ON backend_xid = xmax"))
	acquire(t, openOn(t, both+"&target_session_attrs=primary", "lease", nil), "k")
	require.Equal(t, 1, value[int](t, direct, "SELECT count(*) FROM locker_lease WHERE holder <> ''"))
	t.Log("of two hosts, the standby first, the primary has the locks")
}

// Settings of a role that would cut a wait, a hold or a token short.
func TestInterop_timeoutsOfARoleDoNotCutAWaitShort(t *testing.T) { // C101
	t.Parallel()
	srv := startServer(t)
	for _, mode := range []string{"advisory", blockedMode, "row", "lease"} {
		t.Run(nameOfMode(mode), func(t *testing.T) {
			t.Parallel()
			database, err := srv.NewDatabase(t.Context())
			require.NoError(t, err)
			holder := openOn(t, database, mode, nil)
			role := "role " + nameOfMode(mode)
			url, err := srv.AddRole(t.Context(), database, role, "secret", "SUPERUSER")
			require.NoError(t, err)
			settings := []string{
				"lock_timeout = '200ms'", "statement_timeout = '300ms'", "idle_session_timeout = '500ms'",
				"idle_in_transaction_session_timeout = '400ms'", "default_transaction_isolation = 'serializable'",
			}
			if mode != "lease" { // which has the sessions of the caller's pool
				settings = append(settings, "default_transaction_read_only = on")
			}
			for _, s := range settings {
				require.NoError(t, srv.Exec(t.Context(), "ALTER ROLE "+pgx.Identifier{role}.Sanitize()+" SET "+s))
			}
			l := openOn(t, url, mode, nil)
			k := acquire(t, holder, "k")
			free := time.AfterFunc(2*time.Second, func() { _ = k.Release(context.Background()) })
			defer free.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			start := time.Now()
			got, err := l.Acquire(ctx, "k")
			require.NoError(t, err)
			t.Logf("had after %v what was free after 2s", time.Since(start).Round(time.Millisecond))
			require.Greater(t, got.Token(), k.Token())
			select {
			case <-got.Done():
				require.NoError(t, got.Err(), "its hold is no shorter either")
			case <-time.After(time.Second):
			}
			require.NoError(t, got.Release(ctx))
		})
	}
}

// In a session of the caller's, nothing is changed: the reason is told instead.
func TestInterop_aRoleThatOnlyReadsHasNoLeases(t *testing.T) { // C101
	t.Parallel()
	database := newDatabase(t)
	closeNow(t, openOn(t, database, "lease", nil))
	_, err := NewLease(t.Context(), connect(t, withParam(t, database, "default_transaction_read_only", "on")), nil)
	require.ErrorContains(t, err, "default_transaction_read_only")
}

// What holds a lock is a session that does nothing, and it does so all the time.
func TestInterop_aHeldLockIsSeenAndIsNoOpenTransaction(t *testing.T) { // C103, C104
	t.Parallel()
	database := newDatabase(t)
	pool := connect(t, database)
	l, other := openOn(t, database, "advisory", &locker.OpenConfig{Config: locker.Config{TTL: time.Second}}), openOn(t, database, "advisory", nil)
	k := acquire(t, l, "k")
	class, object := uint32(uint64(Key("", "k"))>>32), uint32(Key("", "k"))
	looks, idle, end := 0, 0, time.Now().Add(3*time.Second)
	for ; time.Now().Before(end); looks++ {
		var state string
		var transactions int
		err := pool.QueryRow(t.Context(), `SELECT state, num_nonnulls(backend_xid, backend_xmin) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = $1 AND objid = $2
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, class, object).Scan(&state, &transactions)
		require.NoError(t, err, "the lock is not seen")
		if state == "idle" { // a renewal is a moment of activity
			idle++
			require.Zero(t, transactions)
		}
		_, err = other.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrHeld)
	}
	require.NoError(t, k.Err())
	t.Logf("seen, and refused to others, in %d of %d looks over three TTLs; its session idle in %d", looks, looks, idle)
	require.Greater(t, idle, looks*9/10)
	assert.NotContains(t, value[string](t, pool, "SELECT string_agg(state, ' ') FROM pg_stat_activity WHERE datname = current_database()"), "in transaction")
}
