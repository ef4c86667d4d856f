package pglock

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestLease_releaseKeepsTheRowForItsToken(t *testing.T) { // G3
	b := newLease(t)
	g := take(t, b, request("k", time.Minute))
	require.NoError(t, g.Release(t.Context()))
	require.Equal(t, int64(g.Token()), value[int64](t, b.pool,
		"SELECT token FROM locker_lease WHERE key = 'k' AND holder IS NULL AND expires_at = '-infinity'"))
}

// An attempt without an answer knows its owner, and no token.
func TestLease_theUndoOfAnUnknownOutcomeGoesByTheOwner(t *testing.T) { // G4
	b := newLease(t)
	req := request("k", time.Minute)
	take(t, b, req)
	other := &leaseGrant{b: b, key: "k", holder: "another one"}
	requireLost(t, other.Release(t.Context()), locker.ReasonTaken)
	require.NoError(t, (&leaseGrant{b: b, key: "k", holder: req.Owner}).Release(t.Context()))
	requireLost(t, (&leaseGrant{b: b, key: "new", holder: req.Owner}).Release(t.Context()), locker.ReasonExpired)
	require.Equal(t, 1, value[int](t, b.pool, "SELECT count(*) FROM locker_lease"), "an undo writes no row")
}

// listen returns a session that hears of releases.
func listen(t *testing.T, b *leaseBackend) *pgx.Conn {
	t.Helper()
	c, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	_, err = c.Exec(t.Context(), "LISTEN "+notifyChannel)
	require.NoError(t, err)
	return c
}

// mark says that somebody waits for the key, and returns its number.
func mark(t *testing.T, c *pgx.Conn, key string) string {
	t.Helper()
	number := Key("locker_lease", key)
	class, object := waitMark(number)
	_, err := c.Exec(t.Context(), "SELECT pg_advisory_lock_shared($1::int, $2::int)", class, object)
	require.NoError(t, err)
	return strconv.FormatInt(number, 10)
}

func TestLease_releaseNotifiesThoseWhoWaitAndNobodyElse(t *testing.T) { // R3
	b := newLease(t)
	c := listen(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	requireFree(t, b, "unwatched")
	number := mark(t, c, "k")
	requireFree(t, b, "unwatched")
	g := take(t, b, request("k", time.Minute))
	require.NoError(t, g.Release(ctx))
	n, err := c.WaitForNotification(ctx)
	require.NoError(t, err)
	require.Equal(t, number, n.Payload)
	requireFree(t, b, "k") // C62: who is told finds it free

	n, err = c.WaitForNotification(ctx)
	require.NoError(t, err)
	require.Equal(t, number, n.Payload, "that of the release just now")
	requireLost(t, g.Release(ctx), locker.ReasonExpired)
	ok, err := b.ForceRelease(ctx, "k", "nobody")
	require.NoError(t, err)
	require.False(t, ok)
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	_, err = c.WaitForNotification(short)
	require.ErrorIs(t, err, context.DeadlineExceeded, "nothing was released")
}

// A release that has looked for waiters before it freed the row would miss the one who
// came in between.
func TestLease_releaseLooksForWaitersAfterItHasFreedTheRow(t *testing.T) { // W3
	b := newLease(t)
	c := listen(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	g := take(t, b, request("k", time.Minute))
	tx := begin(t, b.pool)
	_, err := tx.Exec(ctx, "SELECT FROM locker_lease FOR UPDATE")
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- g.Release(context.Background()) }()
	blocked(t, b.pool)
	mark(t, c, "k")
	require.NoError(t, tx.Rollback(ctx))
	require.NoError(t, <-done)
	_, err = c.WaitForNotification(ctx)
	require.NoError(t, err)
}

// Who marks itself while a release is about to commit waits for that, and then sees the
// key free: nobody would tell it.
func TestLease_aMarkWaitsForTheReleaseThatMissedIt(t *testing.T) {
	b := newLease(t)
	take(t, b, request("k", time.Minute))
	tx := begin(t, b.pool)
	class, object := waitMark(Key("locker_lease", "k"))
	holder := requireHeld(t, b, "k").Holder
	rows, err := tx.Query(t.Context(), b.releaseSQL, pgx.QueryExecModeExec, "k", holder, 0, class, object, notifyChannel, "1")
	require.NoError(t, err)
	outcome, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[struct {
		Outcome string
		Woken   *string
	}])
	require.NoError(t, err)
	require.Equal(t, "freed", outcome.Outcome)
	require.Nil(t, outcome.Woken)
	c := listen(t, b)
	marked := make(chan error)
	go func() {
		_, err := c.Exec(context.Background(), "SELECT pg_advisory_lock_shared($1::int, $2::int)", class, object)
		marked <- err
	}()
	blocked(t, b.pool)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-marked)
	requireFree(t, b, "k")
}
