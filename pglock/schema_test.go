package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

func objects() []object {
	return []object{
		leaseTable(pgx.Identifier{"locker_lease"}), rowTable(pgx.Identifier{"locker_row"}), tokenSequence(pgx.Identifier{"locker_token"}),
	}
}

func TestSchema_manyMakeItAtTheSameTime(t *testing.T) { // C115
	database := newDatabase(t)
	owner := connect(t, database)
	const processes = 32
	pools := make([]*pgxpool.Pool, processes)
	for i := range pools {
		pools[i] = connect(t, database, maxConns(1))
		require.NoError(t, pools[i].Ping(t.Context()))
	}
	for range 20 {
		var all sync.WaitGroup
		for _, pool := range pools {
			all.Go(func() { assert.NoError(t, prepare(context.Background(), pool, true, objects()...)) })
		}
		all.Wait()
		if t.Failed() {
			return
		}
		exec(t, owner, "DROP TABLE locker_lease, locker_row; DROP SEQUENCE locker_token")
	}
}

func TestSchema_whatIsMissingIsNamedWithItsDDL(t *testing.T) { // C115
	pool := connect(t, newDatabase(t))
	for _, o := range objects() {
		err := prepare(t.Context(), pool, false, o)
		require.ErrorContains(t, err, o.kind+" "+o.name.Sanitize()+" does not exist")
		require.ErrorContains(t, err, "set Create")
		_, ddl, found := strings.Cut(err.Error(), "made by: ")
		require.True(t, found)
		exec(t, pool, ddl)
		require.NoError(t, prepare(t.Context(), pool, false, o), "what the error says helps")
		require.NoError(t, prepare(t.Context(), pool, true, o))
	}
	_, err := NewLease(t.Context(), pool, &LeaseConfig{Table: pgx.Identifier{"nowhere", "locks"}, Create: true})
	require.True(t, hasCode(err, "3F000"), err)
}

func TestSchema_aWrongShapeIsRefused(t *testing.T) {
	const columns = `key text COLLATE "C" PRIMARY KEY, holder text, token bigint NOT NULL, expires_at timestamptz NOT NULL`
	for _, tc := range []struct{ name, sql, says string }{
		{"a view", "CREATE VIEW locker_lease AS SELECT 'k' AS key", "is none"},
		{"a sequence", "CREATE SEQUENCE locker_lease", "is none"},
		{"unlogged", "CREATE UNLOGGED TABLE locker_lease (" + columns + ")", "unlogged"},
		{"other types", "CREATE TABLE locker_lease (" + strings.Replace(columns, "bigint", "integer", 1) + ")", "another shape"},
		{"a column less", "CREATE TABLE locker_lease (" + strings.Replace(columns, "holder text,", "", 1) + ")", "another shape"},
		{"no key", "CREATE TABLE locker_lease (" + strings.Replace(columns, "PRIMARY KEY", "", 1) + ")", "another shape"},
		{"half a key", "CREATE TABLE locker_lease (" + strings.Replace(columns, "PRIMARY KEY", "", 1) + ", UNIQUE (key, holder))", "another shape"},
		{"a deferred key", "CREATE TABLE locker_lease (" + strings.Replace(columns, "KEY,", "KEY DEFERRABLE,", 1) + ")", "another shape"},
		{"keys that meet", `CREATE COLLATION bare (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			CREATE TABLE locker_lease (` + strings.Replace(columns, `"C"`, "bare", 1) + ")", "another shape"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := connect(t, newDatabase(t))
			_, err := pool.Exec(t.Context(), tc.sql, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			for _, create := range []bool{false, true} {
				_, err = NewLease(t.Context(), pool, &LeaseConfig{Create: create})
				require.ErrorContains(t, err, tc.says)
			}
		})
	}
	pool := connect(t, newDatabase(t))
	exec(t, pool, "CREATE SEQUENCE locker_token")
	require.ErrorContains(t, prepare(t.Context(), pool, true, objects()[2]), "steps of 1024")
}

// Tokens that the clock gave out before are smaller.
func TestSchema_theSequenceBeginsWithTheClock(t *testing.T) { // G3
	pool := connect(t, newDatabase(t))
	before := value[int64](t, pool, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	require.NoError(t, prepare(t.Context(), pool, true, objects()...))
	first := value[int64](t, pool, "SELECT nextval('locker_token')")
	require.Greater(t, first, before)
	require.Equal(t, first+1024, value[int64](t, pool, "SELECT nextval('locker_token')"))
}

func TestSchema_aRoleThatOnlyChangesRowsIsEnough(t *testing.T) { // C115
	database := newDatabase(t)
	owner := connect(t, database)
	leaseOn(t, owner)
	url, role := newRole(t, database)
	pool := connect(t, url)
	exec(t, owner, fmt.Sprintf("GRANT SELECT, INSERT ON locker_lease TO %q", role))
	_, err := NewLease(t.Context(), pool, nil)
	require.ErrorContains(t, err, "GRANT of UPDATE")
	exec(t, owner, fmt.Sprintf("GRANT UPDATE ON locker_lease TO %q", role))
	for _, create := range []bool{false, true} {
		b, err := newLeaseBackend(t.Context(), pool, &LeaseConfig{Create: create})
		require.NoError(t, err)
		requireFree(t, b, "k")
		require.Zero(t, b.reaper.reap(0, reapBlocks), "it must not delete, and that does no harm")
	}
	_, err = NewLease(t.Context(), pool, &LeaseConfig{Table: pgx.Identifier{"another"}, Create: true})
	require.True(t, hasCode(err, "42501"), err)
}

func TestSchema_namesAreExact(t *testing.T) { // C115
	pool := connect(t, newDatabase(t))
	exec(t, pool, `CREATE SCHEMA "My Schema"`)
	for i, table := range []pgx.Identifier{
		{"locks"}, {"Locks"}, {`a"b`}, {"it's"}, {"locker_lease"}, {"My Schema", "locks"}, {"My Schema", "Ünïcode; DROP TABLE locks; --"}, {"select"}, {"a.b"}, {"$1"}, {"FOR NO KEY UPDATE"}, {"t NOWAIT"},
	} {
		b, err := newLeaseBackend(t.Context(), pool, &LeaseConfig{Table: table, Create: true})
		require.NoError(t, err, table)
		g := take(t, b, request("k", 1e9)) // free: no table is another one
		b.RenewAll(t.Context(), []locker.Renewal{{Grant: g, TTL: 1e9}}, func(_ int, _ locker.Lease, err error) { require.NoError(t, err) })
		require.NoError(t, g.Release(t.Context()))
		require.NoError(t, b.List(t.Context(), nil))
		exec(t, pool, "UPDATE "+table.Sanitize()+" SET token = 1")
		require.Equal(t, int64(1), b.reaper.reap(0, 1), table)
		require.Equal(t, i+1, value[int](t, pool, "SELECT count(*) FROM pg_tables WHERE schemaname IN ('public', 'My Schema')"))
	}
}

func TestSchema_badSettingsAreInvalidBeforeAnythingIsSent(t *testing.T) {
	nowhere := connect(t, "postgres://127.0.0.1:1/none")
	for _, table := range []pgx.Identifier{
		{""}, {"", "t"}, {"s", ""}, {"a", "b", "c"}, {strings.Repeat("x", 64)}, {"a\x00b"}, {"\xff"},
	} {
		_, err := NewLease(t.Context(), nowhere, &LeaseConfig{Table: table})
		require.ErrorIs(t, err, locker.ErrInvalid, "%q", table)
		_, err = NewLeaseBackend(t.Context(), nowhere, &LeaseConfig{Table: table})
		require.ErrorIs(t, err, locker.ErrInvalid, "%q", table)
	}
	_, err := NewLease(t.Context(), nil, nil)
	require.ErrorIs(t, err, locker.ErrInvalid)
	_, err = NewLease(t.Context(), nowhere, nil)
	require.NotErrorIs(t, err, locker.ErrInvalid)
}

func TestSchema_aStandbyMayBecomeThePrimary(t *testing.T) { // C109
	srv := startServer(t)
	leaseOn(t, connect(t, srv.URL()))
	standby, err := testenv.StartPostgresStandby(t.Context(), srv)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Stop()) })
	pool := connect(t, standby.URL())
	_, err = NewLease(t.Context(), pool, nil)
	require.ErrorContains(t, err, "standby")
	require.False(t, isPermanent(err))

	// One that came later, or a primary that has been demoted, refuses each statement.
	b := leaseOn(t, connect(t, srv.URL()))
	b.pool = pool
	g, err := b.TryAcquire(t.Context(), request("k", 1e9))
	require.Nil(t, g)
	require.True(t, hasCode(err, "25006"), err)
	require.False(t, isPermanent(err))

	require.NoError(t, standby.Promote(t.Context()))
	requireFree(t, b, "k")
}

func TestSchema_anEncodingThatChangesKeysIsRefused(t *testing.T) { // K1
	database := newDatabase(t)
	leaseOn(t, connect(t, database))
	pool := connect(t, withParam(t, database, "client_encoding", "LATIN1"))
	_, err := NewLease(t.Context(), pool, nil)
	require.ErrorContains(t, err, "client_encoding is LATIN1")
}

func TestSchema_endsWithItsContext(t *testing.T) {
	pool := connect(t, newDatabase(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err := NewLease(ctx, pool, nil)
	require.ErrorIs(t, err, context.Canceled)
}
