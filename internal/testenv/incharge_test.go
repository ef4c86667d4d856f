//go:build unix

package testenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInCharge_breaksOneServerAtATimeAndMendsIt(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	p := startPg(t, &PostgresConfig{Fast: true})
	e := startOneEtcd(t, nil)
	for name, s := range map[string]struct {
		*InCharge
		ping func(context.Context) error
		pid  func() int
	}{
		"Redis":    {r.InCharge(), r.Ping, r.PID},
		"Postgres": {p.InCharge(), p.Ping, p.PID},
		"etcd":     {e.InCharge(), e.Ping, e.PID},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Error(t, s.Resume(within(t)), "nothing is broken")
			require.Error(t, s.Restart(within(t)), "nothing is broken")
			require.ErrorIs(t, s.CutOff(within(t)), errors.ErrUnsupported)
			require.Error(t, s.Reconnect(within(t)), "nothing is broken")

			require.NoError(t, s.Pause(within(t)))
			silent, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.ping(silent), context.DeadlineExceeded)
			require.Error(t, s.Kill(within(t)), "it is broken already")
			require.NoError(t, s.Resume(within(t)))
			require.NoError(t, s.ping(within(t)))

			require.NoError(t, s.Kill(within(t)))
			assert.Zero(t, s.pid())
			require.Error(t, s.Pause(within(t)), "it is broken already")
			require.NoError(t, s.Restart(within(t)))
			require.NoError(t, s.ping(within(t)))
		})
	}
}

// A PgBouncer in front keeps its clients, and serves them once the server is back.
func TestInCharge_ofAPostgresLeavesThePgBouncerInFrontAlive(t *testing.T) {
	t.Parallel()
	p := startPg(t, &PostgresConfig{Fast: true})
	b := startBouncer(t, p, &PgBouncerConfig{Mode: "transaction"})
	pid, c, i := b.PID(), connect(t, b.URL()), p.InCharge()
	backend(t, c)

	require.NoError(t, i.Pause(within(t)))
	require.NoError(t, b.Ping(within(t)))
	require.NoError(t, i.Resume(within(t)))
	backend(t, c)

	require.NoError(t, i.Kill(within(t)))
	require.NoError(t, b.Ping(within(t)))
	answered := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), "SELECT 1")
		answered <- err
	}()
	require.NoError(t, until(within(t), "the query to wait", func(ctx context.Context) error {
		return askPostgres(ctx, postgresURL(b.addr, "pgbouncer"), func(c *pgconn.PgConn) error {
			results, err := c.Exec(ctx, "SHOW POOLS").ReadAll()
			if err != nil {
				return err
			}
			for _, row := range results[0].Rows {
				if string(row[0]) == "postgres" && string(row[3]) == "1" { // cl_waiting
					return nil
				}
			}
			return errors.New("nobody waits")
		})
	}))
	require.NoError(t, i.Restart(within(t)))
	began := time.Now()
	require.NoError(t, b.AwaitServer(within(t)))
	backend(t, connect(t, b.URL()))
	require.NoError(t, <-answered)
	t.Logf("served %v after the server was back", time.Since(began))
	assert.Less(t, time.Since(began), 2*time.Second)
	assert.Equal(t, pid, b.PID())
}
