package pglock

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestErrors_whatWaitingDoesNotCure(t *testing.T) { // W4
	for code, permanent := range map[string]bool{
		"42501": true, "42P01": true, "42703": true, "42P10": true, "42883": true, // rights and names
		"28000": true, "28P01": true, "3D000": true, "3F000": true,
		"22021": true, "22P05": true, "22003": true, "23505": true, "23514": true, "0A000": true,
		"40001": false, "40P01": false, "55P03": false, "57014": false, "25006": false,
		"53100": false, "53200": false, "53300": false, "54000": false,
		"57P01": false, "57P02": false, "57P03": false, "57P05": false,
		"08006": false, "08P01": false, "58030": false, "XX000": false, "P0001": false, "": false,
	} {
		for _, severity := range []string{"ERROR", "FATAL"} {
			err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Severity: severity, Code: code})
			require.Equal(t, permanent, isPermanent(err), code)
			require.Equal(t, severity == "FATAL", mayHaveRun(err), code)
			require.ErrorIs(t, failed(err), err)
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		require.False(t, isPermanent(err))
		require.True(t, mayHaveRun(err), err)
		require.False(t, mayHaveRun(unsent{err}), err)
		require.ErrorIs(t, unsent{err}, err)
	}
	require.NoError(t, failed(nil))
}

func TestErrors_theServerMayNotKnowItself(t *testing.T) {
	for _, code := range []string{"40003", "08007"} {
		require.True(t, mayHaveRun(&pgconn.PgError{Severity: "ERROR", Code: code}))
	}
	german := &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "40001"}
	require.False(t, mayHaveRun(german))
}

// A refused connection has sent nothing, whatever refused it.
func TestErrors_refusedConnections(t *testing.T) {
	database := newDatabase(t)
	b := leaseOn(t, connect(t, database))
	asked := func(url string, set ...func(*pgxpool.Config)) error {
		refused := *b
		refused.pool = connect(t, url, set...)
		g, err := refused.TryAcquire(t.Context(), request("k", time.Minute))
		require.Nil(t, g)
		require.Error(t, err)
		require.NotErrorIs(t, err, locker.ErrHeld)
		return err
	}
	password, _ := newRole(t, database)
	require.True(t, isPermanent(asked(replace(t, password, "secret", "wrong"))))
	require.True(t, isPermanent(asked(database+"&database=nothing")))
	require.False(t, isPermanent(asked(replace(t, database, anyServer(t).Addr(), "127.0.0.1:1"))))

	one, _ := newRole(t, database, "CONNECTION LIMIT 0")
	err := asked(one)
	require.True(t, hasCode(err, "53300"), err) // C116
	require.False(t, isPermanent(err))

	right, _ := newRole(t, database)
	require.True(t, isPermanent(asked(right)), "no GRANT")
}

func TestErrors_aClosedPoolDoesNotOpenAgain(t *testing.T) {
	pool := connect(t, newDatabase(t))
	l, err := NewLease(t.Context(), pool, &LeaseConfig{Create: true})
	require.NoError(t, err)
	pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err = l.Acquire(ctx, "k")
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it is not waited out")
	require.NoError(t, l.Close(ctx))
}

// 53300 is waited out: C116.
func TestErrors_tooManyConnectionsPass(t *testing.T) {
	database := newDatabase(t)
	owner := connect(t, database)
	b := leaseOn(t, owner)
	url, role := newRole(t, database, "CONNECTION LIMIT 1")
	exec(t, owner, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE ON locker_lease TO %q", role))
	full := connect(t, url)
	conn, err := full.Acquire(t.Context())
	require.NoError(t, err)
	more := *b
	more.pool = connect(t, url)
	waiting := make(chan struct{}, 100)
	l, err := locker.New(&more, &locker.Config{Observer: func(e locker.Event) {
		if e.Kind == locker.EventWaiting && hasCode(e.Err, "53300") {
			waiting <- struct{}{}
		}
	}})
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		k, err := l.Acquire(context.Background(), "k")
		if err == nil {
			err = k.Release(context.Background())
		}
		done <- err
	}()
	select {
	case <-waiting:
	case err := <-done:
		t.Fatal("not waited for:", err)
	}
	require.NoError(t, conn.Conn().Close(context.Background()))
	conn.Release()
	full.Close()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(soon):
		t.Fatal("still waiting")
	}
	require.NoError(t, l.Close(t.Context()))
}

// After ctx has ended pgx comes back at once, whatever the server does.
func TestErrors_callsEndWithTheirContexts(t *testing.T) {
	srv := startServer(t)
	b := leaseOn(t, connect(t, srv.URL()))
	g := take(t, b, request("k", time.Minute))
	require.NoError(t, srv.Pause())
	defer srv.Resume()
	for name, call := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error { _, err := b.TryAcquire(ctx, request("x", time.Minute)); return err },
		"renew":   func(ctx context.Context) error { _, err := g.Renew(ctx, time.Minute); return err },
		"release": g.Release,
		"inspect": func(ctx context.Context) error { _, err := b.Inspect(ctx, "k"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		err := call(ctx)
		require.Less(t, time.Since(start), time.Second, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.NotErrorIs(t, err, locker.ErrLost, name)
		cancel()
	}
	require.NoError(t, srv.Resume())
}
