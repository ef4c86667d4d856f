package pglock

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// A server that has just started has ended sessions whose holders may not know it. One whose
// tokens have never been used has not.
func TestRestart_nothingIsGrantedUntilTheHoldersOfBeforeKnow(t *testing.T) { // G1, H2
	t.Parallel()
	const grace = 2 * time.Second
	srv := startServer(t)
	pool := connect(t, srv.URL())
	advisory := func(cfg Config) (locker.Backend, error) {
		cfg.Create, cfg.RestartGrace = true, grace
		return NewBackend(t.Context(), pool, &cfg)
	}
	backends := map[string]func() (locker.Backend, error){
		"advisory": func() (locker.Backend, error) { return advisory(Config{}) },
		"row": func() (locker.Backend, error) {
			return NewRowBackend(t.Context(), pool, &RowConfig{Create: true, RestartGrace: grace})
		},
	}
	try := func(mode string) (time.Duration, error) {
		b, err := backends[mode]()
		require.NoError(t, err)
		defer func() { require.NoError(t, b.(locker.Closer).Close(context.Background())) }()
		g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
		if err == nil {
			require.NoError(t, g.Release(t.Context()))
		}
		up := time.Duration(value[float64](t, pool, `SELECT extract(epoch FROM clock_timestamp() -
			greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver)))::float8`) * float64(time.Second))
		return up, err
	}
	for mode := range backends {
		_, err := try(mode)
		require.NoError(t, err, "%s: the sequence is new", mode)
	}
	for _, end := range []struct {
		name string
		do   func()
	}{
		{"restart", func() {
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Restart(t.Context()))
		}},
		{"crash of one process", func() { crashOne(t, pool) }},
	} {
		end.do()
		pool.Reset()
		require.Eventually(t, func() bool { return srv.Ping(t.Context()) == nil }, 2*soon, 10*time.Millisecond)
		refused := 0
		for mode := range backends {
			require.Eventually(t, func() bool {
				up, err := try(mode)
				if err == nil {
					require.Greater(t, up, grace, "%s after a %s", mode, end.name)
					return true
				}
				require.ErrorContains(t, err, "RestartGrace", fmt.Sprint(mode, up))
				require.NotErrorIs(t, err, locker.ErrHeld)
				refused++
				return false
			}, grace+2*soon, 100*time.Millisecond)
		}
		require.NotZero(t, refused, "after a %s", end.name)
	}
}

// crashOne ends one of the server's processes so that the others are restarted too.
func crashOne(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	c, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	require.NoError(t, err)
	p, err := os.FindProcess(int(c.PgConn().PID()))
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	_, err = c.Exec(t.Context(), "SELECT pg_sleep(60)")
	require.Error(t, err)
	_ = c.Close(context.Background())
}
