//go:build unix

package testenv

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startBouncer(t *testing.T, of *Postgres, cfg *PgBouncerConfig) *PgBouncer {
	t.Helper()
	began := time.Now()
	b, err := StartPgBouncer(t.Context(), of, cfg)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("PgBouncer started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, b.Stop()) })
	return b
}

// backend is the process that answers on the server.
func backend(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	return query(t, c, "SELECT pg_backend_pid()::text")
}

func TestPgBouncer_inEachModeKeepsABackendForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	p := startPg(t, &PostgresConfig{Fast: true})
	for _, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := startBouncer(t, p, &PgBouncerConfig{Mode: mode, PoolSize: 2})
			a, other := connect(t, b.URL()), connect(t, b.URL())
			before := backend(t, a)

			// Another client that keeps, where it can, the backend that was free.
			_, err := other.Exec(within(t), "BEGIN")
			if mode == "statement" {
				require.Error(t, err, "transactions are not for this mode")
				return
			}
			require.NoError(t, err)
			taken := backend(t, other)
			after := backend(t, a)
			if mode == "session" {
				assert.Equal(t, before, after)
				assert.NotEqual(t, before, taken)
				return
			}
			assert.Equal(t, before, taken)
			assert.NotEqual(t, before, after, "two statements of one client ran on one backend")

			// C98: the lock stays on the backend, where the next client has it too.
			_, err = other.Exec(within(t), "ROLLBACK")
			require.NoError(t, err)
			assert.Equal(t, "true", query(t, a, "SELECT pg_try_advisory_lock(1)::text"))
			assert.Equal(t, "true", query(t, other, "SELECT pg_try_advisory_lock(1)::text"))

			// C99.
			_, err = pgx.Connect(within(t), b.URL()+"&options=-c%20lock_timeout%3D1s")
			require.ErrorContains(t, err, "unsupported startup parameter: options")
		})
	}
	t.Run("for any role and database", func(t *testing.T) {
		t.Parallel()
		b := startBouncer(t, p, &PgBouncerConfig{Mode: "transaction", Settings: []string{"max_client_conn = 1"}})
		database, err := p.NewDatabase(within(t))
		require.NoError(t, err)
		role, err := p.AddRole(within(t), database, "app", "secret")
		require.NoError(t, err)
		through, err := b.Through(role)
		require.NoError(t, err)
		c := connect(t, through)
		assert.Equal(t, "app", query(t, c, "SELECT current_user"))
		assert.Contains(t, database, query(t, c, "SELECT current_database()"))
		_, err = pgx.Connect(within(t), through)
		require.ErrorContains(t, err, "no more connections allowed")
	})
}

func TestPgBouncer_canBePausedKilledRestartedAndStopped(t *testing.T) {
	t.Parallel()
	p := startPg(t, &PostgresConfig{Fast: true})
	b := startBouncer(t, p, nil)
	c := connect(t, b.URL())

	require.NoError(t, b.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Ping(ctx), context.DeadlineExceeded)
	require.NoError(t, b.Resume())
	assert.NotEmpty(t, backend(t, c))

	addr, pid := b.Addr(), b.PID()
	require.NoError(t, b.Kill())
	assert.Zero(t, b.PID())
	require.Error(t, c.Ping(within(t)))
	require.NoError(t, p.Kill())
	require.NoError(t, b.Restart(within(t)), "it does not need the server for that")
	require.NoError(t, p.Restart(within(t)))
	assert.Equal(t, addr, b.Addr())
	assert.NotEqual(t, pid, b.PID())
	assert.NotEmpty(t, backend(t, connect(t, b.URL())))

	pid = b.PID()
	require.NoError(t, b.Stop())
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "the process is left")
	assert.NoDirExists(t, b.dir)
	require.NoError(t, b.Stop(), "stopping it again")
	require.ErrorIs(t, b.Restart(within(t)), ErrNotRunning)
}

func TestStartPgBouncer_saysWhatIsWrong(t *testing.T) {
	tmp := openTemp(t)
	p := &Postgres{server: server{addr: "127.0.0.1:1", dir: tmp}}
	for _, bad := range []*PgBouncerConfig{{Mode: "connection"}, {PoolSize: -1}} {
		_, err := StartPgBouncer(t.Context(), p, bad)
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrNotInstalled)
	}
	_, err := StartPgBouncer(t.Context(), p, &PgBouncerConfig{Settings: []string{"no_such_setting = 1"}})
	if Skippable(err) {
		t.Skip(err)
	}
	require.ErrorContains(t, err, "no_such_setting")
	assertEmpty(t, tmp)
}
