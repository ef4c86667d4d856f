//go:build unix

package testenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startPg is StartPostgres for tests: skipped or failed without a server, stopped at
// the end.
func startPg(t *testing.T, cfg *PostgresConfig) *Postgres {
	t.Helper()
	began := time.Now()
	p, err := StartPostgres(t.Context(), cfg)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("Postgres started in %v", time.Since(began))
	t.Cleanup(func() {
		assert.NoError(t, p.Stop())
		assert.NoDirExists(t, p.dir)
	})
	return p
}

// connect is a connection that is closed at the end of the test.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	// What every pooler understands.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	c, err := pgx.ConnectConfig(within(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // some are broken by then
	})
	return c
}

// query is the text of the one value that a query returns.
func query(t *testing.T, c *pgx.Conn, sql string) string {
	t.Helper()
	var value string
	require.NoError(t, c.QueryRow(within(t), sql).Scan(&value))
	return value
}

func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// openTemp gives the test a directory for temporary files that the user postgres can
// reach.
func openTemp(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	t.Setenv("TMPDIR", dir)
	return dir
}

// openDir is a directory that everybody can look into, other than t.TempDir.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "locker-open-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// requirePostgres skips or fails a test that needs the programs only.
func requirePostgres(t *testing.T) postgresPrograms {
	t.Helper()
	programs, err := findPostgres()
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return programs
}

// ownCache gives the test a cache directory, in which there is no template.
func ownCache(t *testing.T) {
	t.Helper()
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
}

func TestPostgres_startsWithItsOwnPortAndSettings(t *testing.T) {
	t.Parallel()
	a := startPg(t, nil)
	b := startPg(t, &PostgresConfig{Fast: true, Settings: []string{"max_connections = 7"}})
	assert.Equal(t, "postgres://postgres:postgres@"+a.Addr()+"/postgres?sslmode=disable", a.URL())
	assert.NotEqual(t, a.Addr(), b.Addr())
	toA, toB := connect(t, a.URL()), connect(t, b.URL())
	assert.Equal(t, "on", query(t, toA, "SHOW fsync"))
	assert.Equal(t, "off", query(t, toB, "SHOW fsync"))
	assert.Equal(t, "7", query(t, toB, "SHOW max_connections"))
	assert.NotEqual(t, query(t, toA, "SHOW data_directory"), query(t, toB, "SHOW data_directory"))
}

func TestPostgres_aBadSettingIsAnErrorThatTellsWhatPostgresSaid(t *testing.T) {
	tmp := openTemp(t)
	_, err := StartPostgres(t.Context(), &PostgresConfig{Settings: []string{"no_such_setting = 1"}})
	if Skippable(err) {
		t.Skip(err)
	}
	require.ErrorContains(t, err, "no_such_setting")
	assertEmpty(t, tmp)
}

// Not only the first process is paused, but those of the sessions too.
func TestPostgres_isSilentWhilePausedAndAnswersAfterResume(t *testing.T) {
	t.Parallel()
	p := startPg(t, &PostgresConfig{Fast: true})
	c := connect(t, p.URL())
	require.NoError(t, p.Pause())
	require.NoError(t, p.Pause(), "pausing it again")
	answered := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), "SELECT 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a paused session answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Ping(ctx), context.DeadlineExceeded)

	require.NoError(t, p.Resume())
	require.NoError(t, <-answered, "what was sent during the pause is answered after it")
	require.NoError(t, p.Ping(within(t)))
}

func TestPostgres_killAndRestartKeepWhatWasCommitted(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]*PostgresConfig{"durable": nil, "fast": {Fast: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPg(t, cfg)
			addr, pid := p.Addr(), p.PID()
			require.NoError(t, p.Exec(within(t), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)"))
			// A busy session notices the end of the server only after its work.
			busy := connect(t, p.URL())
			require.NoError(t, p.Exec(within(t), "INSERT INTO kept VALUES (2)"))
			ended := make(chan error, 1)
			go func() {
				_, err := busy.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 10000000000)")
				ended <- err
			}()
			require.NoError(t, until(within(t), "the query", func(ctx context.Context) error {
				return p.holds(ctx, "EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%generate_series(1,%' AND pid <> pg_backend_pid() AND state = 'active')")
			}))

			require.NoError(t, p.Kill())
			require.Error(t, <-ended)
			assert.Zero(t, p.PID())
			require.Error(t, p.Ping(within(t)))
			require.ErrorIs(t, p.Pause(), ErrNotRunning)
			require.NoError(t, p.Kill(), "killing it again")

			began := time.Now()
			require.NoError(t, p.Restart(within(t)))
			t.Logf("restarted in %v", time.Since(began))
			assert.Equal(t, addr, p.Addr())
			assert.NotEqual(t, pid, p.PID())
			assert.Equal(t, "2", query(t, connect(t, p.URL()), "SELECT count(*)::text FROM kept"))

			require.NoError(t, p.Pause())
			began = time.Now()
			require.NoError(t, p.Restart(within(t)), "also when it is paused, and has clients")
			assert.Less(t, time.Since(began), stopGrace, "it had to be killed")
			assert.NotContains(t, p.log(), "not properly shut down", "a restart is orderly")
			require.NoError(t, p.Ping(within(t)))
		})
	}
}

func TestStartPostgres_copiesATemplateThatIsMadeOnce(t *testing.T) {
	programs := requirePostgres(t)
	ownCache(t)
	as, err := serverAccount()
	require.NoError(t, err)
	template, err := (&Postgres{programs: programs}).template(within(t))
	require.NoError(t, err)
	require.NoDirExists(t, template)

	// The first two at once, each of which finds none.
	copied := make(chan error, 2)
	for range cap(copied) {
		dir := openDir(t)
		require.NoError(t, as.own(dir))
		p := &Postgres{server: server{dir: dir, as: as}, programs: programs}
		go func() { copied <- p.copyData(t.Context()) }()
	}
	for range cap(copied) {
		require.NoError(t, <-copied)
	}
	require.FileExists(t, filepath.Join(template, "PG_VERSION"))
	entries, err := os.ReadDir(filepath.Dir(template))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "left beside the template")

	p := startPg(t, &PostgresConfig{Fast: true})
	assert.NoFileExists(t, filepath.Join(p.dir, "password"), "it ran initdb")
	assert.NotContains(t, readFile(t, filepath.Join(template, "postgresql.conf")), "fsync = off\n", "its settings are in the template")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func TestStartPostgres_endsWithItsContext(t *testing.T) {
	requirePostgres(t)
	cause := errors.New("enough")
	dead, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := StartPostgres(dead, nil)
	require.ErrorIs(t, err, cause)

	// Programs that never get ready.
	for _, stuck := range []string{"postgres", "initdb"} {
		t.Run(stuck, func(t *testing.T) {
			ownCache(t)
			bin := openDir(t)
			t.Setenv("LOCKER_TEST_POSTGRES_BIN", bin)
			tmp := openTemp(t)
			script := "#!/bin/sh\ncase $* in --version) exit;; esac\ncase $0 in */" + stuck + ") echo loading; sleep 60;; esac\n" +
				"mkdir -p data; echo >data/postgresql.conf; echo >data/pg_hba.conf\n"
			for _, name := range []string{"postgres", "initdb", "pg_basebackup"} {
				require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
			}
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			_, err = StartPostgres(ctx, nil)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "loading")
			assertEmpty(t, tmp)
		})
	}
}

func TestPostgres_databasesAreApartAndRolesMayDoWhatTheyWereGiven(t *testing.T) {
	t.Parallel()
	p := startPg(t, &PostgresConfig{Fast: true})
	began := time.Now()
	one, err := p.NewDatabase(within(t))
	require.NoError(t, err)
	t.Logf("database made in %v", time.Since(began))
	other, err := p.NewDatabase(within(t))
	require.NoError(t, err)
	_, err = connect(t, one).Exec(within(t), "CREATE TABLE mine ()")
	require.NoError(t, err)
	_, err = connect(t, other).Exec(within(t), "SELECT FROM mine")
	assert.Equal(t, "42P01", sqlState(err), "a table of one is in the other")

	const password = `p@ss/w:rd % 'quoted' \`
	limited, err := p.AddRole(within(t), one, "the app", password, "CONNECTION LIMIT 1")
	require.NoError(t, err)
	c := connect(t, limited)
	_, err = c.Exec(within(t), "SELECT FROM mine")
	assert.Equal(t, "42501", sqlState(err))
	_, err = pgx.Connect(within(t), limited)
	assert.Equal(t, "53300", sqlState(err), "a second connection")

	_, err = p.AddRole(within(t), one, "the app", password)
	assert.Equal(t, "42710", sqlState(err), "the role is there already")
	assert.NotContains(t, err.Error(), password)
}

func TestPostgresStandby_replicatesRefusesWritesAndIsPromoted(t *testing.T) {
	t.Parallel()
	primary := startPg(t, &PostgresConfig{Fast: true})
	require.NoError(t, primary.Exec(within(t), "CREATE TABLE replicated (n int)"))
	began := time.Now()
	standby, err := StartPostgresStandby(t.Context(), primary)
	require.NoError(t, err)
	t.Logf("standby started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, standby.Stop()) })
	require.NoError(t, primary.Exec(within(t), "INSERT INTO replicated VALUES (1)"))
	require.NoError(t, standby.awaitReplay(within(t), primary))
	c := connect(t, standby.URL())
	assert.Equal(t, "1", query(t, c, "SELECT count(*)::text FROM replicated"))
	assert.Equal(t, "25006", sqlState(standby.Exec(within(t), "INSERT INTO replicated VALUES (2)")))

	// C109: the same lock on both.
	assert.Equal(t, "true", query(t, connect(t, primary.URL()), "SELECT pg_try_advisory_lock(1)::text"))
	assert.Equal(t, "true", query(t, c, "SELECT pg_try_advisory_lock(1)::text"))

	require.NoError(t, standby.Pause())
	require.NoError(t, primary.Exec(within(t), "INSERT INTO replicated VALUES (3)"))
	require.NoError(t, primary.Kill())
	require.NoError(t, standby.Resume())
	began = time.Now()
	require.NoError(t, standby.Promote(within(t)))
	t.Logf("promoted in %v", time.Since(began))
	require.NoError(t, standby.Exec(within(t), "INSERT INTO replicated VALUES (2)"))
	require.Error(t, standby.Promote(within(t)), "promoting it again")
}

func TestStartPostgres_saysWhatIsMissing(t *testing.T) {
	bin, tmp := t.TempDir(), openTemp(t)
	t.Setenv("PATH", bin)
	if newestPostgres() != "" {
		_, err := findPostgres()
		require.NoError(t, err, "it is where it is found without PATH")
	}
	// A server without its tools.
	require.NoError(t, os.WriteFile(filepath.Join(bin, "postgres"), nil, 0o755))
	primary := &Postgres{server: server{dir: bin}}
	for name, start := range map[string]func(context.Context) error{
		"one":     func(ctx context.Context) error { _, err := StartPostgres(ctx, nil); return err },
		"standby": func(ctx context.Context) error { _, err := StartPostgresStandby(ctx, primary); return err },
	} {
		t.Run(name, func(t *testing.T) {
			err := start(t.Context())
			require.ErrorIs(t, err, ErrNotInstalled)
			require.ErrorContains(t, err, "initdb")
			require.ErrorContains(t, err, "make deps")
			assertEmpty(t, tmp)
		})
	}
	// What was named has to be there.
	t.Setenv("LOCKER_TEST_POSTGRES_BIN", bin)
	t.Setenv("LOCKER_TEST_REQUIRE", "")
	_, err := StartPostgres(t.Context(), nil)
	require.ErrorContains(t, err, "LOCKER_TEST_POSTGRES_BIN")
	assert.False(t, Skippable(err))
}

func TestAnyPostgres_startsAServerUnlessOneWasGiven(t *testing.T) {
	t.Setenv("LOCKER_TEST_POSTGRES_URL", "")
	own, err := AnyPostgres(t.Context())
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, own.Stop()) })
	assert.NotZero(t, own.PID())

	t.Setenv("LOCKER_TEST_POSTGRES_URL", own.URL())
	p, err := AnyPostgres(t.Context())
	require.NoError(t, err)
	assert.Equal(t, own.URL(), p.URL())
	assert.Equal(t, own.Addr(), p.Addr())
	assert.Zero(t, p.PID())
	for _, err := range []error{p.Pause(), p.Resume(), p.Kill(), p.Restart(within(t))} {
		require.ErrorIs(t, err, ErrNotOurs)
	}
	_, err = StartPostgresStandby(t.Context(), p)
	require.ErrorIs(t, err, ErrNotOurs)
	_, err = StartPgBouncer(t.Context(), p, nil)
	require.ErrorIs(t, err, ErrNotOurs)

	database, err := p.NewDatabase(within(t))
	require.NoError(t, err)
	role, err := p.AddRole(within(t), database, "app", "secret", "SUPERUSER")
	require.NoError(t, err)
	_, err = connect(t, role).Exec(within(t), "CREATE TABLE mine ()")
	require.NoError(t, err)
	require.NoError(t, p.Stop(), "with a client in the database")
	assert.NoError(t, own.holds(within(t), "NOT EXISTS (SELECT FROM pg_database WHERE datname LIKE 'test%')"))
	assert.NoError(t, own.holds(within(t), "NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app')"))

	require.NoError(t, own.Stop())
	for _, bad := range []string{own.URL(), "postgres://:secret@%zz/", "postgres:///x", "http://localhost"} {
		t.Setenv("LOCKER_TEST_POSTGRES_URL", bad)
		_, err = AnyPostgres(within(t))
		require.Error(t, err, bad)
		assert.False(t, Skippable(err), bad)
		assert.NotContains(t, err.Error(), "secret")
	}
}
