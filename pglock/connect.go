package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-locker/locker"
)

// connectBound is how long the making of a session may take.
const connectBound = 5 * time.Second

var errStandby = errors.New("pglock: the server is a standby, whose locks the primary does not know")

// connector makes sessions of a Locker's own, with the settings of the caller's pool.
type connector struct {
	config        *pgx.ConnConfig
	beforeConnect func(context.Context, *pgx.ConnConfig) error
	grace         time.Duration
	burials       chan struct{} // what is in it is under way
	sequenceMade  int64         // in microseconds of the server's clock; 0: there is none. See young
}

func newConnector(pool *pgxpool.Pool, grace time.Duration) *connector {
	cfg := pool.Config()
	c := &connector{config: cfg.ConnConfig, beforeConnect: cfg.BeforeConnect, grace: grace, burials: make(chan struct{}, maxBurials)}
	if c.config.ValidateConnect == nil && len(c.config.Fallbacks) > 0 {
		// Of several hosts it takes the one that is the primary.
		c.config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return c
}

// bury sees to it that the server ends a session whose connection has ended: it may not
// have noticed, and hold its locks for some time. It blocks until that is so, or ctx ends, or
// for ttl, after which the server will have done so by itself. Then the wire is settled.
func (c *connector) bury(ctx context.Context, w *wire, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	over := false
	const most = time.Second
	for pause := most / 50; !over && ctx.Err() == nil; pause = min(2*pause, most) {
		if over = c.endOnServer(ctx, w); !over {
			select {
			case <-time.After(pause/2 + rand.N(pause)):
			case <-ctx.Done():
			}
		}
	}
	w.settle(over)
}

// maxBurials is how many sessions are ended at a time: one outage may take many.
const maxBurials = 4

// endOnServer reports whether the primary says that a session is over, after it was told to
// end it. A session whose beginning it does not show, because this role may not see it, may
// be the one; and one of an advisory Locker that has lost its mark by now is another client's, to
// whom a pooler has given it.
func (c *connector) endOnServer(ctx context.Context, w *wire) bool {
	ctx, cancel := context.WithTimeout(ctx, connectBound)
	defer cancel()
	select {
	case c.burials <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-c.burials }()
	conn, err := c.connect(ctx)
	if err != nil {
		return false
	}
	defer conn.Close(ctx) //nolint:errcheck // its answer is there
	mine := backendStart + " = " + literal(w.started)
	if w.marked {
		mine += " AND application_name LIKE '%[locker %'"
	}
	gone, err := ask(ctx, conn, asItself+"SELECT NOT pg_is_in_recovery() AND coalesce(bool_and(CASE WHEN backend_start IS NULL THEN false "+
		"WHEN "+mine+" THEN pg_terminate_backend(pid, 1000) ELSE true END), true) FROM pg_stat_activity WHERE pid = "+w.pid)
	return err == nil && gone[0] == "t"
}

// asItself begins a query of several statements, which are one transaction. A role that
// becomes another one as it connects (ALTER ROLE … SET role) may lack the right to see and
// to end its own sessions otherwise.
const asItself = "SELECT set_config('role', 'none', true); "

// backendStart tells a session from a later one of the same pid, whatever the DateStyle.
const backendStart = "extract(epoch FROM backend_start)::text"

// application is the name under which the pool's sessions run.
func (c *connector) application() string { return c.config.RuntimeParams["application_name"] }

// milliseconds is a duration in the unit of the server's timeouts.
func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// serverStart is the server's clock, and since when at most it has had its sessions: since
// its start, its recovery from the crash of one of its processes, which resets the
// statistics, or what it replayed last when it was a standby.
const serverStart = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, " +
	"(extract(epoch FROM greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver), " +
	"pg_last_xact_replay_timestamp())) * 1000000)::bigint"

// young is the error for a server that has not been up for long. All its sessions ended
// before, and the locks on them: but a holder that was paused, or cut off, at the time may
// believe in his until its Deadline. There was none if the sequence of the tokens has been
// made since.
func (c *connector) young(w *wire) error {
	if c.sequenceMade > w.serverStart {
		return nil
	}
	if left := c.grace - time.Since(w.born); left > 0 {
		return locker.NoEffect(fmt.Errorf("pglock: the server has started, and lost all its locks, less than %v ago: "+
			"for another %v their holders may not know it (RestartGrace)", c.grace, left.Round(time.Millisecond)))
	}
	return nil
}

// vanish are the settings with which the server gives a client up whose machine has
// vanished: not before after, when its lock is over for it too. While an answer is not
// acknowledged there are no keepalives, and the second one counts.
func vanish(after time.Duration) []setting {
	idle := min(int64((after+time.Second-1)/time.Second), maxKeepalive)
	return []setting{
		{"tcp_keepalives_idle", strconv.FormatInt(idle, 10)},
		{"tcp_user_timeout", milliseconds(max(after, time.Second))},
	}
}

// writes is for roles that only read by default: a token is written.
var writes = setting{"default_transaction_read_only", "off"}

// maxKeepalive is the largest that Linux takes, in seconds.
const maxKeepalive = 32767

// setting is a server parameter of a session.
type setting struct{ name, value string }

// open makes a session with settings on top of those that every session has. The wire's
// hooks are to be set, and run to be called.
func (c *connector) open(ctx context.Context, settings ...setting) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, connectBound)
	defer cancel()
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, failed(err)
	}
	w, err := c.setUp(ctx, conn, settings)
	if err != nil {
		_ = conn.Close(ctx)
		return nil, failed(err)
	}
	return w, nil
}

func (c *connector) connect(ctx context.Context) (*pgconn.PgConn, error) {
	cfg, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	return pgconn.ConnectConfig(ctx, &cfg.Config)
}

// settings are those of the next connection.
func (c *connector) settings(ctx context.Context) (*pgx.ConnConfig, error) {
	cfg := c.config.Copy()
	if c.beforeConnect != nil {
		if err := c.beforeConnect(ctx, cfg); err != nil {
			return nil, err
		}
	}
	cfg.OnNotice, cfg.OnNotification, cfg.Tracer = nil, nil, nil
	return cfg, nil
}

func (c *connector) setUp(ctx context.Context, conn *pgconn.PgConn, settings []setting) (*wire, error) {
	// Before any SET: behind a pooler it would change somebody else's session.
	facts, err := ask(ctx, conn, asItself+"SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery(), current_setting('synchronous_commit'), "+
		"(SELECT "+backendStart+" FROM pg_stat_activity WHERE pid = pg_backend_pid()), "+serverStart)
	if err != nil {
		return nil, err
	}
	answered := time.Now()
	pid, version := facts[0], facts[1]
	switch n, err := strconv.Atoi(version); {
	case err != nil || n < minServerVersion:
		return nil, locker.Permanent(fmt.Errorf("pglock: server version %s: PostgreSQL 14 is the first that ends an idle session by itself", version))
	case facts[2] == "t":
		return nil, locker.NoEffect(errStandby)
	}
	if err := c.probe(ctx, conn, pid); err != nil {
		return nil, err
	}
	all := []setting{
		{"statement_timeout", "0"}, // a statement that is cut short leaves open what it has locked
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		writes,
		{"default_transaction_isolation", "read committed"},
		{"plan_cache_mode", "force_generic_plan"},
		{"tcp_keepalives_interval", "1"},
		{"tcp_keepalives_count", "2"},
	}
	if facts[3] == "off" {
		// A crash of the server must not take a token back that was handed out.
		all = append(all, setting{"synchronous_commit", "on"})
	}
	// A server looks now and then whether the client of a statement that waits is still
	// there, if its system lets it.
	const look = "CASE WHEN version() LIKE '%linux%' THEN set_config('client_connection_check_interval', '250', false) END"
	// From PostgreSQL 17. It would end the transaction of a row lock, and a wait in line.
	const lasts = "CASE WHEN current_setting('server_version_num')::int >= 170000 THEN set_config('transaction_timeout', '0', false) END"
	// A server changes the characters of a name that it does not know.
	const name = "current_setting('application_name')"
	set, err := ask(ctx, conn, "SELECT "+setAll(slices.Concat(all, settings), false)+", "+look+", "+lasts+", "+name)
	if err != nil {
		return nil, err
	}
	w, err := newWire(conn, pid, facts[4])
	if err != nil {
		return nil, err
	}
	w.marked = sessionTTL(set[len(set)-1]) > 0
	now, _ := strconv.ParseInt(facts[5], 10, 64)
	w.serverStart, _ = strconv.ParseInt(facts[6], 10, 64)
	w.born = answered.Add(-time.Duration(now-w.serverStart) * time.Microsecond)
	return w, nil
}

// setAll is the SQL that changes settings, for a transaction only or for the session.
func setAll(settings []setting, local bool) string {
	calls := make([]string, len(settings))
	for i, s := range settings {
		calls[i] = fmt.Sprintf("set_config(%s, %s, %v)", literal(s.name), literal(s.value), local)
	}
	return strings.Join(calls, ", ")
}

// ask returns the one row of a query.
func ask(ctx context.Context, conn *pgconn.PgConn, query string) ([]string, error) {
	results, err := conn.Exec(ctx, query).ReadAll()
	if err != nil {
		return nil, err
	}
	last := results[len(results)-1]
	if len(last.Rows) != 1 {
		return nil, fmt.Errorf("pglock: %d rows instead of one", len(last.Rows))
	}
	var row []string
	for _, value := range last.Rows[0] {
		row = append(row, string(value))
	}
	return row, nil
}

// tokens checks that there can be sessions that hold locks; and checks, and makes if create
// is set, what the tokens come from. It returns the SQL expression that mints one.
func (c *connector) tokens(ctx context.Context, name pgx.Identifier, clock, create bool, others ...object) (expression string, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectBound)
	defer cancel()
	cfg, err := c.settings(ctx)
	if err != nil {
		return "", err
	}
	db, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", failed(err)
	}
	defer db.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its answers are there
	pid, err := ask(ctx, db.PgConn(), whichSession)
	if err == nil {
		err = c.probe(ctx, db.PgConn(), pid[0]) // no session with locks yet: there may be one session only
	}
	if err == nil {
		_, err = ask(ctx, db.PgConn(), "SELECT "+setAll([]setting{writes}, false))
	}
	if err != nil {
		return "", failed(err)
	}
	sequence := tokenSequence(name)
	if !clock {
		if err := prepare(ctx, db, create, append(others, sequence)...); err != nil {
			return "", err
		}
		regclass := literal(name.Sanitize()) + "::regclass"
		made := db.QueryRow(ctx, "SELECT CASE WHEN seqstart <= extract(epoch FROM clock_timestamp()) * 1000000 THEN seqstart ELSE 0 END "+
			"FROM pg_sequence WHERE seqrelid = "+regclass, pgx.QueryExecModeExec)
		return "nextval(" + regclass + ")", failed(made.Scan(&c.sequenceMade))
	}
	if err := prepare(ctx, db, create, others...); err != nil {
		return "", err
	}
	switch err := sequence.check(ctx, db, ""); {
	case err == nil:
		return "", locker.Permanent(fmt.Errorf("pglock: ClockToken, but there is a sequence %s: "+
			"Lockers that use it have tokens that do not compare with those of the clock", name.Sanitize()))
	case !errors.Is(err, errMissing):
		return "", err
	}
	return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", nil
}
