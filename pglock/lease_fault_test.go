package pglock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// lockRow has a transaction lock the key's row, which is there and free.
func lockRow(t *testing.T, b *leaseBackend, key string) (unlock func()) {
	t.Helper()
	requireFree(t, b, key)
	tx := begin(t, b.pool)
	_, err := tx.Exec(t.Context(), "SELECT FROM locker_lease WHERE key = $1 FOR UPDATE", key)
	require.NoError(t, err)
	return func() { require.NoError(t, tx.Rollback(context.Background())) }
}

func TestLease_anAcquireWithoutAnAnswerCanBeUndone(t *testing.T) { // G4, C02
	for name, end := range map[string]func(t *testing.T, b *leaseBackend, cancel func()){
		"cancelled": func(_ *testing.T, _ *leaseBackend, cancel func()) { cancel() },
		"terminated": func(t *testing.T, b *leaseBackend, _ func()) { // 57P01
			exec(t, b.pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLease(t)
			unlock := lockRow(t, b, "k")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			type reply struct {
				g   locker.Grant
				err error
			}
			done := make(chan reply)
			go func() {
				g, err := b.TryAcquire(ctx, request("k", time.Minute))
				done <- reply{g, err}
			}()
			blocked(t, b.pool)
			end(t, b, cancel)
			r := <-done
			require.Error(t, r.err)
			require.False(t, isPermanent(r.err))
			require.NotNil(t, r.g)
			require.Zero(t, r.g.Token())
			unlock()
			// The server may not have heard yet that it is to stop, and go on. Not before it
			// has ended is the undo's answer the last one: the Locker asks more than once.
			require.Eventually(t, func() bool {
				return value[int](t, b.pool, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()`) == 0
			}, soon, time.Millisecond)
			if err := r.g.Release(t.Context()); err != nil {
				requireLost(t, err, locker.ReasonExpired)
			}
			requireFree(t, b, "k")
		})
	}
}

// A server that refuses a statement has done nothing.
func TestLease_aRefusedStatementTakesNothing(t *testing.T) { // C101
	database := newDatabase(t)
	owner := leaseOn(t, connect(t, database))
	for setting, code := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} {
		unlock := lockRow(t, owner, "k")
		b := leaseOn(t, connect(t, withParam(t, database, setting, "50ms")))
		g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
		require.Nil(t, g)
		require.True(t, hasCode(err, code), err)
		require.False(t, isPermanent(err))
		require.NotErrorIs(t, err, locker.ErrHeld)
		unlock()
		requireFree(t, b, "k")
	}
}

func TestLease_waitsOutTheTimeoutsOfItsRole(t *testing.T) { // C101, W4
	database := newDatabase(t)
	owner := leaseOn(t, connect(t, database))
	url, role := newRole(t, database)
	exec(t, owner.pool, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE ON locker_lease TO %q", role))
	exec(t, owner.pool, fmt.Sprintf("ALTER ROLE %q SET lock_timeout = '200ms'", role))
	exec(t, owner.pool, fmt.Sprintf("ALTER ROLE %q SET statement_timeout = '300ms'", role))
	unlock := lockRow(t, owner, "k")
	failures := make(chan error, 100)
	l, err := NewLease(t.Context(), connect(t, url), &LeaseConfig{Config: locker.Config{Observer: func(e locker.Event) {
		if e.Kind == locker.EventWaiting {
			failures <- e.Err
		}
	}}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	done := make(chan error)
	go func() {
		k, err := l.Acquire(ctx, "k")
		if err == nil {
			err = k.Release(ctx)
		}
		done <- err
	}()
	require.True(t, hasCode(<-failures, "55P03", "57014"))
	unlock()
	require.NoError(t, <-done)
	require.NoError(t, l.Close(ctx))
}

// Who waits for one of the pool's connections has sent nothing.
func TestLease_aPoolInUseTakesNothing(t *testing.T) {
	b := leaseOn(t, connect(t, newDatabase(t), maxConns(1)))
	conn, err := b.pool.Acquire(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	g, err := b.TryAcquire(ctx, request("k", time.Minute))
	require.Nil(t, g)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, isPermanent(err))
	conn.Release()
	requireFree(t, b, "k")
}

// 53200: the server's lock table is full. It is not held.
func TestLease_aFullLockTableIsNotContention(t *testing.T) { // C116
	srv := startServer(t, "max_locks_per_transaction = 10", "max_connections = 10", "autovacuum = off")
	b := leaseOn(t, connect(t, srv.URL(), maxConns(3)))
	g := take(t, b, request("k", time.Minute))
	hog := begin(t, b.pool)
	_, err := hog.Exec(t.Context(), `DO $$ BEGIN
		FOR i IN 1 .. 1000000 LOOP PERFORM pg_advisory_lock(i); END LOOP;
	EXCEPTION WHEN out_of_memory THEN END $$`) // those of a session stay
	require.NoError(t, err)
	err = g.Release(t.Context())
	require.True(t, hasCode(err, "53200"), err)
	require.False(t, isPermanent(err))
	require.False(t, mayHaveRun(err))
	_, err = hog.Exec(t.Context(), "SELECT pg_advisory_unlock_all()")
	require.NoError(t, err)
	require.NoError(t, g.Release(t.Context()))
}
