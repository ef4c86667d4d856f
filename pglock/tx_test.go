package pglock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

const txNamespace = "tx"

// lockTx takes a key in a transaction.
func lockTx(t *testing.T, tx pgx.Tx, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.NoError(t, LockTx(ctx, tx, txNamespace, key))
}

func TestLockTx_excludesLockersAndOtherTransactions(t *testing.T) { // G1, C104
	pool := connect(t, newDatabase(t))
	b := advisoryOn(t, pool, Config{Namespace: txNamespace})
	tx, other := begin(t, pool), begin(t, pool)
	lockTx(t, tx, "k")
	requireHeld(t, b, "k")
	var held *locker.HeldError
	require.ErrorAs(t, TryLockTx(t.Context(), other, txNamespace, "k"), &held)
	require.Equal(t, locker.HeldError{Key: "k"}, *held)
	require.NoError(t, TryLockTx(t.Context(), other, txNamespace, "other"), "the transaction goes on")
	require.NoError(t, TryLockTx(t.Context(), other, "another", "k"))
	require.NoError(t, TryLockTx(t.Context(), tx, txNamespace, "k"), "a session does not exclude itself")
	require.NoError(t, tx.Commit(t.Context()))
	requireFree(t, b, "k")

	g := take(t, b, request("k", time.Minute))
	require.ErrorIs(t, TryLockTx(t.Context(), other, txNamespace, "k"), locker.ErrHeld)
	require.NoError(t, g.Release(t.Context()))
	require.NoError(t, TryLockTx(t.Context(), other, txNamespace, "k"))
}

func TestLockTx_excludesPlainSQLBothWays(t *testing.T) { // G1
	pool := connect(t, newDatabase(t))
	psql := begin(t, pool)
	try := func() (got bool) {
		require.NoError(t, psql.QueryRow(t.Context(), "SELECT pg_try_advisory_lock($1::bigint)", Key(txNamespace, "k")).Scan(&got))
		return got
	}
	tx := begin(t, pool)
	lockTx(t, tx, "k")
	require.False(t, try())
	require.NoError(t, tx.Rollback(t.Context()))
	require.True(t, try())
	require.ErrorIs(t, TryLockTx(t.Context(), begin(t, pool), txNamespace, "k"), locker.ErrHeld)
}

func TestLockTx_waitsUntilTheKeyIsFree(t *testing.T) { // W1
	pool := connect(t, newDatabase(t))
	b := advisoryOn(t, pool, Config{Namespace: txNamespace})
	g := take(t, b, request("k", time.Minute))
	tx := begin(t, pool)
	done := make(chan error)
	go func() { done <- LockTx(context.Background(), tx, txNamespace, "k") }()
	blocked(t, pool)
	require.NoError(t, g.Release(t.Context()))
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(soon):
		t.Fatal("it waits on")
	}
	requireHeld(t, b, "k")
}

// A Locker that waits is not told, and finds out.
func TestLockTx_endsWithItsTransaction(t *testing.T) { // R3, C96
	pool := connect(t, newDatabase(t))
	l, err := New(t.Context(), pool, &Config{Create: true, Namespace: txNamespace})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	for name, end := range map[string]func(pgx.Tx) error{
		"commit":   func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
		"rollback": func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
		"loss": func(tx pgx.Tx) error {
			exec(t, pool, "SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, pool)
			lockTx(t, tx, "k")
			got := make(chan locker.Lock, 1)
			go func() {
				if k, err := l.Acquire(context.Background(), "k"); err == nil {
					got <- k
				}
			}()
			require.Eventually(t, func() bool { // it has its mark, and has looked
				return value[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2") == 1
			}, soon, time.Millisecond)
			require.Empty(t, got)
			require.NoError(t, end(tx))
			select {
			case k := <-got:
				require.NoError(t, k.Release(t.Context()))
			case <-time.After(soon):
				t.Fatal("still held")
			}
		})
	}
}

func TestLockTx_theEndOfItsContextEndsTheWait(t *testing.T) { // G6, C106
	pool := connect(t, newDatabase(t))
	lockTx(t, begin(t, pool), "k")
	tx := begin(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- LockTx(ctx, tx, txNamespace, "k") }()
	blocked(t, pool)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Eventually(t, func() bool { return waiters(t, pool) == 0 }, soon, time.Millisecond)
}

func TestLockTx_worksThroughATransactionPooler(t *testing.T) { // C98, C99
	srv := startServer(t)
	bouncer, err := testenv.StartPgBouncer(t.Context(), srv, &testenv.PgBouncerConfig{Mode: "transaction", PoolSize: 3})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, bouncer.Stop()) })
	direct := connect(t, srv.URL())
	pool := connect(t, bouncer.URL(), maxConns(3))
	b := advisoryOn(t, direct, Config{Namespace: txNamespace})
	for range 20 {
		tx, other := begin(t, pool), begin(t, pool)
		lockTx(t, tx, "k")
		requireHeld(t, b, "k")
		require.ErrorIs(t, TryLockTx(t.Context(), other, txNamespace, "k"), locker.ErrHeld)
		require.NoError(t, other.Rollback(t.Context()))
		require.NoError(t, tx.Commit(t.Context()))
		requireFree(t, b, "k")
	}
	require.Zero(t, advisoryLocks(t, direct))
}

func TestLockTx_badArgumentsAreInvalid(t *testing.T) { // K1, C73
	pool := connect(t, newDatabase(t))
	tx := begin(t, pool)
	for _, lock := range []func(context.Context, pgx.Tx, string, string) error{LockTx, TryLockTx} {
		for _, key := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 513)} {
			require.ErrorIs(t, lock(t.Context(), tx, "", key), locker.ErrInvalid, "%q", key)
		}
		for _, namespace := range []string{"a\x00b", "\xff", strings.Repeat("x", 513)} {
			require.ErrorIs(t, lock(t.Context(), tx, namespace, "k"), locker.ErrInvalid, "%q", namespace)
		}
		require.ErrorIs(t, lock(t.Context(), nil, "", "k"), locker.ErrInvalid)
	}
	require.NoError(t, TryLockTx(t.Context(), tx, "", "k"), "nothing was sent that would have failed")

	_, err := tx.Exec(t.Context(), "SELECT 1 / 0")
	require.Error(t, err)
	err = TryLockTx(t.Context(), tx, "", "k")
	require.True(t, hasCode(err, "25P02"), err)
	require.NotErrorIs(t, err, locker.ErrHeld)
}
