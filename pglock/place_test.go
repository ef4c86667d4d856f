package pglock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// queues are the modes in which the server keeps the line of those who wait.
var queues = map[string]func(context.Context, *pgxpool.Pool) (locker.Locker, error){
	"blocked": func(ctx context.Context, pool *pgxpool.Pool) (locker.Locker, error) {
		return New(ctx, pool, &Config{Create: true, BlockedWaiters: true})
	},
	"row": func(ctx context.Context, pool *pgxpool.Pool) (locker.Locker, error) {
		return NewRow(ctx, pool, &RowConfig{Create: true})
	},
}

// inEachQueue runs a test in each of the modes, on a database of its own.
func inEachQueue(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, open func() locker.Locker)) {
	for name, open := range queues {
		t.Run(name, func(t *testing.T) {
			pool := connect(t, newDatabase(t))
			test(t, pool, func() locker.Locker {
				l, err := open(t.Context(), pool)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
				return l
			})
		})
	}
}

// waiters is how many sessions of a database wait for something.
func waiters(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`)
}

func TestPlace_firstComeFirstServed(t *testing.T) { // W2, C62
	inEachQueue(t, func(t *testing.T, pool *pgxpool.Pool, open func() locker.Locker) {
		const lockers = 5
		held := acquire(t, open(), "k")
		turns := make(chan int)
		for i := range lockers {
			l := open()
			go func() {
				k, err := l.Acquire(context.Background(), "k")
				turns <- i
				if assert.NoError(t, err) {
					assert.NoError(t, k.Release(context.Background()))
				}
			}()
			require.Eventually(t, func() bool { return waiters(t, pool) == i+1 }, soon, time.Millisecond)
		}
		require.NoError(t, held.Release(t.Context()))
		for i := range lockers {
			select {
			case turn := <-turns:
				require.Equal(t, i, turn)
			case <-time.After(soon):
				t.Fatalf("%d of %d served", i, lockers)
			}
		}
	})
}

func TestPlace_aCancelledWaitLeavesNoSession(t *testing.T) { // W3, C106
	inEachQueue(t, func(t *testing.T, pool *pgxpool.Pool, open func() locker.Locker) {
		const keys, cancels = 10, 500
		holder, l := open(), open()
		var all sync.WaitGroup
		var held []locker.Lock
		for i := range keys {
			key := fmt.Sprint("k", i)
			held = append(held, acquire(t, holder, key))
			all.Go(func() {
				for range cancels / keys {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
					_, err := l.Acquire(ctx, key)
					assert.ErrorIs(t, err, context.DeadlineExceeded) //nolint:testifylint // on a goroutine
					cancel()
				}
			})
		}
		all.Wait()
		// The server looks every 250 ms.
		require.Eventually(t, func() bool { return waiters(t, pool) == 0 }, soon, time.Millisecond)
		for _, k := range held {
			require.NoError(t, k.Release(t.Context()))
			require.NoError(t, acquire(t, l, k.Key()).Release(t.Context()), "nobody else has got it")
		}
	})
}

// The one who waits gets what the end of the holder's session frees.
func TestPlace_theEndOfTheHoldersSessionServesTheNext(t *testing.T) { // W1, C53
	inEachQueue(t, func(t *testing.T, pool *pgxpool.Pool, open func() locker.Locker) {
		held := acquire(t, open(), "k")
		served := make(chan error)
		l := open()
		go func() {
			k, err := l.Acquire(context.Background(), "k")
			served <- err
			if err == nil {
				assert.NoError(t, k.Release(context.Background()))
			}
		}()
		blocked(t, pool)
		exec(t, pool, `SELECT pg_terminate_backend(l.pid) FROM pg_locks w, pg_locks l WHERE NOT w.granted AND l.granted
			AND l.pid = ANY (pg_blocking_pids(w.pid)) LIMIT 1`)
		select {
		case err := <-served:
			require.NoError(t, err)
		case <-time.After(soon):
			t.Fatal("not served")
		}
		select {
		case <-held.Done():
			require.ErrorIs(t, held.Release(t.Context()), locker.ErrLost)
		case <-time.After(soon):
			t.Fatal("not told")
		}
	})
}

// Who waits for a row may find that it was deleted when its turn comes.
func TestRow_deletedWhileItIsWaitedFor(t *testing.T) { // W1, C62
	pool := connect(t, newDatabase(t))
	l, err := queues["row"](t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	first := acquire(t, l, "k")
	require.NoError(t, first.Release(t.Context()))
	tx := begin(t, pool)
	_, err = tx.Exec(t.Context(), "DELETE FROM locker_row")
	require.NoError(t, err)
	served := make(chan locker.Lock)
	go func() {
		k, err := l.Acquire(context.Background(), "k")
		assert.NoError(t, err)
		served <- k
	}()
	blocked(t, pool)
	require.NoError(t, tx.Commit(t.Context()))
	select {
	case k := <-served:
		require.Greater(t, k.Token(), first.Token())
		other, err := queues["row"](t.Context(), pool)
		require.NoError(t, err)
		_, err = other.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrHeld, "G1: it is a row that others see")
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, other.Close(t.Context()))
	case <-time.After(soon):
		t.Fatal("not served")
	}
}

func TestRow_deletedBetweenTwoAttempts(t *testing.T) { // G3
	pool := connect(t, newDatabase(t))
	l, err := queues["row"](t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	last := uint64(0)
	for range 3 {
		k := acquire(t, l, "k")
		require.Greater(t, k.Token(), last)
		last = k.Token()
		require.NoError(t, k.Release(t.Context()))
		exec(t, pool, "DELETE FROM locker_row")
	}
}

// Plain SQL takes part: it is in the same line.
func TestRow_excludesPlainSQLBothWays(t *testing.T) { // G1
	pool := connect(t, newDatabase(t))
	l, err := queues["row"](t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	k := acquire(t, l, "k")
	tx := begin(t, pool)
	_, err = tx.Exec(t.Context(), "SELECT FROM locker_row WHERE key = 'k' FOR UPDATE NOWAIT")
	require.True(t, hasCode(err, "55P03"), err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, k.Release(t.Context()))
	tx = begin(t, pool)
	_, err = tx.Exec(t.Context(), "SELECT FROM locker_row WHERE key = 'k' FOR UPDATE")
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, acquire(t, l, "k").Release(t.Context()))
}

// SQL that makes the row in the transaction that locks it has the key as well, and an
// attempt does not wait for it.
func TestRow_anAttemptDoesNotWaitForWhoMakesTheRow(t *testing.T) { // G5
	pool := connect(t, newDatabase(t))
	l, err := queues["row"](t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	tx := begin(t, pool)
	_, err = tx.Exec(t.Context(), "INSERT INTO locker_row VALUES ('k')")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err = l.TryAcquire(ctx, "k")
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, ctx.Err())
	served := waitFor(t, l, "k")
	blocked(t, pool)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, (<-served).k.Release(t.Context()))
}

// A row that cannot be made is not looked for again and again.
func TestRow_oneThatCannotBeMadeIsAnError(t *testing.T) { // W4
	pool := connect(t, newDatabase(t))
	l, err := queues["row"](t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	exec(t, pool, "ALTER TABLE locker_row ADD CHECK (key <> 'k')")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err = l.TryAcquire(ctx, "k")
	require.True(t, hasCode(err, "23514"), err)
	_, err = l.Acquire(ctx, "k")
	require.True(t, hasCode(err, "23514"), err)
}
