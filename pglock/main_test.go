package pglock

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// soon is how long a test waits for what is due at once.
const soon = 5 * time.Second

// shared is the one server of all tests that do not break theirs.
var shared = sync.OnceValues(func() (srv *testenv.Postgres, err error) {
	srv, err = testenv.AnyPostgres(context.Background())
	if err == nil {
		stopShared = srv.Stop
	}
	return srv, err
})

var stopShared func() error // nil: it was not started

func TestMain(m *testing.M) {
	if serveChild() {
		return
	}
	// Tests that run in parallel wait more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code := m.Run()
	if stopShared != nil {
		if err := stopShared(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(testenv.Leaving...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// anyServer is the shared server.
func anyServer(t testing.TB) *testenv.Postgres {
	t.Helper()
	srv, err := shared()
	started(t, err)
	return srv
}

// startServer starts a server for this test alone, which keeps what was committed.
func startServer(t testing.TB, settings ...string) *testenv.Postgres {
	t.Helper()
	srv, err := testenv.StartPostgres(context.Background(), &testenv.PostgresConfig{Settings: settings})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	return srv
}

// started skips the test if what it needs is not installed.
func started(t testing.TB, err error) {
	t.Helper()
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// newDatabase makes an empty database on the shared server and returns its URL.
func newDatabase(t testing.TB) string {
	t.Helper()
	url, err := anyServer(t).NewDatabase(context.Background())
	require.NoError(t, err)
	return url
}

// newRole makes a role for a database of the shared server, with nothing but the options
// of CREATE ROLE, and returns the database's URL for it.
func newRole(t testing.TB, database string, options ...string) (url, name string) {
	t.Helper()
	name = "role_" + uuid.NewString()
	url, err := anyServer(t).AddRole(context.Background(), database, name, "secret", options...)
	require.NoError(t, err)
	return url, name
}

// connect makes a pool that the test's end closes.
func connect(t testing.TB, url string, set ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	for _, f := range set {
		f(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// maxConns is a setting for connect.
func maxConns(n int32) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.MaxConns = n }
}

// exec runs SQL that is not the product's.
func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// value is the one value of a query.
func value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, pool.QueryRow(context.Background(), sql, args...).Scan(&v))
	return v
}

// withParam is a URL with one more parameter of the session, such as a search_path.
func withParam(t testing.TB, raw, name, value string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func request(key string, ttl time.Duration) locker.Request {
	return locker.Request{Key: key, Owner: uuid.NewString(), TTL: ttl}
}

func requireLost(t testing.TB, err error, reason locker.Reason) {
	t.Helper()
	var lost *locker.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, reason, lost.Reason)
}

// take acquires a free key.
func take(t testing.TB, b locker.Backend, req locker.Request) locker.Grant {
	t.Helper()
	g, err := b.TryAcquire(context.Background(), req)
	require.NoError(t, err)
	return g
}

func requireHeld(t testing.TB, b locker.Backend, key string) *locker.HeldError {
	t.Helper()
	g, err := b.TryAcquire(context.Background(), request(key, time.Minute))
	require.Nil(t, g)
	var held *locker.HeldError
	require.ErrorAs(t, err, &held)
	return held
}

// requireFree takes the key and gives it back.
func requireFree(t testing.TB, b locker.Backend, key string) {
	t.Helper()
	require.NoError(t, take(t, b, request(key, time.Minute)).Release(context.Background()))
}

// blocked waits until a session of the server waits for a row, or a key, of another one.
func blocked(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, soon, time.Millisecond)
}

// begin begins a transaction of SQL that is not the product's.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// replace is a URL with something else in one place.
func replace(t testing.TB, url, old, other string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(url, old))
	return strings.Replace(url, old, other, 1)
}
