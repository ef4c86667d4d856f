package pglock

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wireOn makes a session, and returns a channel that its end closes.
func wireOn(t *testing.T, pool *pgxpool.Pool) (w *wire, ended <-chan struct{}) {
	t.Helper()
	w, err := newConnector(pool, 0).open(t.Context())
	require.NoError(t, err)
	end := make(chan struct{})
	w.onEnd = func(error) { close(end) }
	go w.run()
	t.Cleanup(func() {
		w.close()
		<-end
	})
	return w, end
}

// countWrites is a setting for connect.
func countWrites(n *atomic.Int64) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			return counted{c, n}, err
		}
	}
}

// occupy has the server owe the session an answer until free is called.
func occupy(t *testing.T, pool *pgxpool.Pool, w *wire) (c *call, free func()) {
	t.Helper()
	const number = 4711
	tx := begin(t, pool)
	_, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1::bigint)", number)
	require.NoError(t, err)
	c = newCallWith(&cmdBlock, strconv.Itoa(number))
	w.start(c)
	blocked(t, pool)
	return c, func() { require.NoError(t, tx.Rollback(context.Background())) }
}

// queued waits until so many calls wait to be sent.
func queued(t *testing.T, w *wire, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.queue) == n
	}, soon, 1e6)
}

// answered waits for an answer.
func answered(t *testing.T, c *call) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	require.True(t, c.wait(ctx), "no answer")
	return c.err
}

var cmdEcho = command{name: "echo", sql: "SELECT n FROM unnest($1::bigint[]) AS n", batched: true}

func advisoryLocks(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return value[int](t, pool, `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

func TestWire_sendsTogetherWhatGathers(t *testing.T) {
	var writes atomic.Int64
	database := newDatabase(t)
	w, _ := wireOn(t, connect(t, database, countWrites(&writes)))
	first, free := occupy(t, connect(t, database), w)
	before := writes.Load()
	const calls = 500
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			c := newCall(&cmdEcho, int64(i))
			assert.NoError(t, w.do(context.Background(), c)) //nolint:testifylint // on a goroutine
			assert.Equal(t, [][][]byte{{[]byte(strconv.Itoa(i))}}, c.rows, "its own row")
		})
	}
	queued(t, w, calls)
	free()
	all.Wait()
	require.NoError(t, answered(t, first))
	require.Equal(t, int64(1), writes.Load()-before)
}

// A statement takes a part of the server's lock table for all its calls at once.
func TestWire_sharesAStatementAmongAFew(t *testing.T) { // C116
	w := &wire{}
	for i := range 500 {
		w.queue = append(w.queue, newCall(&cmdEcho, int64(i)))
	}
	w.board()
	require.Len(t, w.flight, 4)
	require.Len(t, w.flight[0].calls, maxShared)
	require.Empty(t, w.queue)
}

func TestWire_answersEachOfManyAtOnce(t *testing.T) {
	var writes atomic.Int64
	w, _ := wireOn(t, connect(t, newDatabase(t), countWrites(&writes)))
	const goroutines, calls = 500, 4
	before := writes.Load()
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for n := range calls {
				c := newCall(&cmdEcho, int64(i*calls+n))
				assert.NoError(t, w.do(context.Background(), c)) //nolint:testifylint // on a goroutine
				assert.Equal(t, strconv.Itoa(i*calls+n), string(c.rows[0][0]))
			}
		})
	}
	all.Wait()
	require.Less(t, writes.Load()-before, int64(goroutines*calls/2))
}

// A key is given back before it is taken again, in whatever order they were asked for.
func TestWire_givesBackBeforeItTakes(t *testing.T) { // G1
	database := newDatabase(t)
	pool := connect(t, database)
	w, _ := wireOn(t, connect(t, database))
	take := takeBy("1")
	require.NoError(t, w.do(t.Context(), newCall(&take, 7)))
	_, free := occupy(t, pool, w)
	again, give := newCall(&take, 7), newCall(&cmdGiveBack, 7)
	w.start(again, give)
	free()
	require.NoError(t, answered(t, give))
	require.NoError(t, answered(t, again))
	require.Equal(t, "t", string(give.rows[0][0]))
	require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"))
	require.NoError(t, w.do(t.Context(), newCall(&cmdGiveBack, 7)))
	require.Zero(t, value[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"), "it was taken once")
}

// takeAll fails at the number 7, when it has locked others, and 7.
var takeAll = command{
	name: "take all", batched: true, undo: &cmdUndoTake,
	sql: "SELECT CASE WHEN pg_try_advisory_lock(n) THEN 1 / (n - 7) END FROM unnest($1::bigint[]) AS n",
}

// The server keeps session locks over an error.
func TestWire_undoesAFailedStatement(t *testing.T) { // G4, C116
	database := newDatabase(t)
	pool := connect(t, database)
	w, _ := wireOn(t, connect(t, database))
	_, free := occupy(t, pool, w)
	calls := []*call{newCall(&takeAll, 1), newCall(&takeAll, 7), newCall(&takeAll, 2)}
	echo := newCall(&cmdEcho, 1)
	w.start(append(calls, echo)...)
	free()
	for _, c := range calls {
		require.True(t, hasCode(answered(t, c), "22012"), c.err)
	}
	require.NoError(t, answered(t, echo), "another statement of the flight")
	require.Equal(t, 1, advisoryLocks(t, pool), "that of occupy")
	require.NoError(t, w.do(t.Context(), newCall(&takeAll, 1)))
}

// What failed after it had given a lock back must not give it back again when it has been
// taken meanwhile, in the same flight.
func TestWire_anUndoLeavesAloneWhatWasTakenInTheSameFlight(t *testing.T) { // G1, C116
	database := newDatabase(t)
	pool := connect(t, database)
	for name, sql := range map[string]string{
		"after":  "SELECT CASE WHEN pg_advisory_unlock(n) THEN 1 / (n - 7) END FROM unnest($1::bigint[]) AS n",
		"before": "SELECT 1 / (n - 7), pg_advisory_unlock(n) FROM unnest($1::bigint[]) AS n",
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := wireOn(t, connect(t, database))
			take := takeBy("1")
			require.NoError(t, w.do(t.Context(), newCall(&take, 7)))
			badGive := command{name: "bad give " + name, batched: true, undo: &cmdUndoTake, sql: sql}
			_, free := occupy(t, pool, w)
			again, give := newCall(&take, 7), newCall(&badGive, 7)
			w.start(again, give)
			free()
			require.True(t, hasCode(answered(t, give), "22012"))
			held := 0
			if answered(t, again) == nil {
				held = 1
			}
			const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
			require.Equal(t, held, value[int](t, pool, locks), "what the call was told")
			if held == 1 {
				require.NoError(t, w.do(t.Context(), newCall(&cmdGiveBack, 7)))
			}
			require.Zero(t, value[int](t, pool, locks), "it was taken once")
		})
	}
}

func TestWire_endsWhenTheUndoFails(t *testing.T) { // G4
	database := newDatabase(t)
	pool := connect(t, database)
	w, ended := wireOn(t, connect(t, database))
	undo := command{name: "no undo", sql: "SELECT 1 / (n - n) FROM unnest($1::bigint[]) AS n", batched: true}
	take := takeAll
	take.undo = &undo
	c := newCall(&take, 7)
	require.True(t, hasCode(w.do(t.Context(), c), "22012"), "that of the call itself")
	<-ended
	require.Eventually(t, func() bool { return advisoryLocks(t, pool) == 0 }, soon, 1e6)
}

func TestWire_preparesAgainWhatTheServerRefused(t *testing.T) {
	pool := connect(t, newDatabase(t))
	w, _ := wireOn(t, pool)
	take := takeBy("nextval('locker_token'::regclass)")
	for range 2 {
		require.True(t, hasCode(w.do(t.Context(), newCall(&take, 7)), "42P01"))
	}
	require.Zero(t, advisoryLocks(t, pool))
	exec(t, pool, "CREATE SEQUENCE locker_token START 5")
	c := newCall(&take, 7)
	require.NoError(t, w.do(t.Context(), c))
	require.Equal(t, "5", string(c.rows[0][0]))
}

func TestWire_neverSendsACallWhoseContextEndedBefore(t *testing.T) { // G4, G6
	database := newDatabase(t)
	pool := connect(t, database)
	exec(t, pool, "CREATE SEQUENCE counter")
	w, _ := wireOn(t, connect(t, database))
	count := command{name: "count", sql: "SELECT nextval('counter')"}
	_, free := occupy(t, pool, w)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.do(ctx, newCallWith(&count)) }()
	queued(t, w, 1)
	cancel()
	err := <-done
	require.ErrorIs(t, err, errNotSent)
	require.ErrorIs(t, err, context.Canceled)
	free()
	c := newCallWith(&count)
	require.NoError(t, w.do(t.Context(), c))
	require.Equal(t, "1", string(c.rows[0][0]), "the first one")
}

// One that was sent goes on, and its answer comes to whoever waits for it.
func TestWire_aCallThatWasSentIsAnsweredAfterItsContext(t *testing.T) { // G4
	database := newDatabase(t)
	w, _ := wireOn(t, connect(t, database))
	c, free := occupy(t, connect(t, database), w)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, c.wait(ctx))
	free()
	require.NoError(t, answered(t, c))
}

func TestWire_answersEveryCallAtItsEnd(t *testing.T) { // H5, C108
	database := newDatabase(t)
	pool := connect(t, database)
	for name, end := range map[string]func(*wire){
		"by the server":  func(w *wire) { exec(t, pool, "SELECT pg_terminate_backend("+w.pid+")") },
		"by the network": func(w *wire) { _ = w.conn.Close() },
		"by us":          (*wire).close,
	} {
		t.Run(name, func(t *testing.T) {
			w, ended := wireOn(t, connect(t, database))
			sent, free := occupy(t, pool, w)
			defer free()
			var thens atomic.Int64
			var waiting []*call
			for i := range 10 {
				c := newCall(&cmdEcho, int64(i))
				c.then = func() { thens.Add(1) }
				waiting = append(waiting, c)
			}
			w.start(waiting...)
			end(w)
			ending := (*endError)(nil)
			require.ErrorAs(t, answered(t, sent), &ending)
			require.NotErrorIs(t, sent.err, errNotSent, "it may have been done")
			require.Equal(t, name == "by the server", ending.byServer)
			for _, c := range waiting {
				require.ErrorIs(t, answered(t, c), errNotSent)
			}
			<-ended
			require.Equal(t, int64(len(waiting)), thens.Load())
			late := newCall(&cmdEcho, 1)
			require.ErrorIs(t, w.do(t.Context(), late), errNotSent)
			require.Error(t, w.ended())
		})
	}
}

func TestWire_knowsHowLongTheServerIsSilent(t *testing.T) { // R4
	database := newDatabase(t)
	w, _ := wireOn(t, connect(t, database))
	require.Zero(t, w.silent())
	require.Positive(t, w.idle())
	c, free := occupy(t, connect(t, database), w)
	require.Positive(t, w.silent())
	require.Zero(t, w.idle())
	free()
	require.NoError(t, answered(t, c))
	require.Zero(t, w.silent())
}

// What the server says of its own accord is nobody's answer.
func TestWire_takesNoticesForNoAnswers(t *testing.T) {
	database := newDatabase(t)
	pool := connect(t, database)
	w, _ := wireOn(t, connect(t, database))
	notice := command{name: "notice", sql: "SELECT pg_advisory_unlock(n) FROM unnest($1::bigint[]) AS n", batched: true}
	c := newCall(&notice, 99) // warns: it does not have the lock
	require.NoError(t, w.do(t.Context(), c))
	require.Equal(t, "f", string(c.rows[0][0]))
	settings := command{name: "set", sql: "SET application_name = 'x'"} // reports the parameter
	require.NoError(t, w.do(t.Context(), newCallWith(&settings)))
	require.NoError(t, w.do(t.Context(), newCall(&cmdEcho, 1)))
	require.Zero(t, advisoryLocks(t, pool))
	refused := (*pgconn.PgError)(nil)
	bad := command{name: "bad", sql: "SELECT nothing"}
	require.ErrorAs(t, w.do(t.Context(), newCallWith(&bad)), &refused)
	require.NoError(t, w.do(t.Context(), newCall(&cmdEcho, 1)))
}
