package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-locker/locker"
)

// LeaseConfig configures a Locker on a table of leases. A nil *LeaseConfig stands for
// the defaults.
type LeaseConfig struct {
	locker.Config

	// Table is the table's name, or its schema and its name, exactly: "Locks" is not
	// "locks". Without a schema, the role's search_path says where it is. Nil:
	// locker_lease. More than two parts, an empty one or one over 63 bytes is
	// locker.ErrInvalid.
	Table pgx.Identifier

	// Create makes the table if it is missing. Several processes may do so at the same
	// time. The schema has to be there.
	Create bool

	// Listen, if set, brings wake-ups: a waiter hears of a release at once, over one
	// connection that is made with the settings of this pool while something is waited
	// for, and not taken from it. They have to lead to the server itself, or through a
	// pooler that keeps a session for its client. It may be the pool of the leases. Nil:
	// waiters look again as the holder's lease goes by.
	Listen *pgxpool.Pool
}

// NewLease returns a Locker that keeps its locks as rows of one table, each with the time
// at which its lease ends, by the database's clock. It sends single statements over
// connections of pool, none of which it keeps: a pool of one connection is enough, and a
// PgBouncer in any mode is fine. They are prepared, if pool's settings want that and lead to
// the server itself. pool stays the caller's to close, after the Locker.
//
// It blocks for three or four statements, which look whether the server and the table are
// what they have to be, and for a connection like those of LeaseConfig.Listen, if that is
// set; it ends with ctx. Bad settings are locker.ErrInvalid, before
// anything is sent.
func NewLease(ctx context.Context, pool *pgxpool.Pool, cfg *LeaseConfig) (locker.Locker, error) {
	if cfg == nil {
		cfg = &LeaseConfig{}
	}
	return newLeaseLocker(ctx, pool, cfg, nil)
}

// newLeaseLocker is NewLease for a pool that owned closes.
func newLeaseLocker(ctx context.Context, pool *pgxpool.Pool, cfg *LeaseConfig, owned func()) (locker.Locker, error) {
	b, err := newLeaseBackend(ctx, pool, cfg)
	if err != nil {
		return nil, err
	}
	b.owned = owned
	if cfg.Listen == nil {
		return withBackend(b, &cfg.Config)
	}
	l, err := b.listening(ctx, cfg.Listen)
	if err != nil {
		return nil, err
	}
	return withBackend(l, &cfg.Config)
}

// NewLeaseBackend returns the Backend of NewLease, for those who wrap it. It makes no use
// of the embedded locker.Config, and else does as NewLease does.
func NewLeaseBackend(ctx context.Context, pool *pgxpool.Pool, cfg *LeaseConfig) (locker.Backend, error) {
	if cfg == nil {
		cfg = &LeaseConfig{}
	}
	b, err := newLeaseBackend(ctx, pool, cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Listen == nil {
		return b, nil
	}
	l, err := b.listening(ctx, cfg.Listen)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// listeningLease is a leaseBackend with wake-ups.
type listeningLease struct {
	*leaseBackend
	*listener
}

var _ locker.Waker = listeningLease{}

// listening adds wake-ups, if there can be any.
func (b *leaseBackend) listening(ctx context.Context, pool *pgxpool.Pool) (listeningLease, error) {
	c := newConnector(pool, 0)
	w, err := c.open(ctx)
	if err != nil {
		if errors.Is(err, errPooler) {
			err = locker.Permanent(fmt.Errorf("leases work there, but nobody is woken: leave it out, or let it lead to the server itself: %w", err))
		}
		return listeningLease{}, fmt.Errorf("pglock: LeaseConfig.Listen (locker_listen in a URL): %w", err)
	}
	w.close()
	return listeningLease{b, newListener(c, func(key string) int64 { return Key(b.namespace, key) }, false)}, nil
}

// Info implements locker.Backend.
func (b listeningLease) Info() locker.Info {
	info := b.leaseBackend.Info()
	info.Can |= locker.CapWakeUp
	return info
}

// Close implements locker.Closer.
func (b listeningLease) Close(ctx context.Context) error {
	return errors.Join(b.listener.close(ctx), b.leaseBackend.Close(ctx))
}

// leaseBackend implements locker.Backend on a table of leases.
type leaseBackend struct {
	pool      *pgxpool.Pool
	owned     func() // closes the pool, if Open made it
	namespace string // of Key: the table's name without its schema, which not all need to name
	reaper    *reaper
	prepares  *atomic.Bool // for now; see mode

	acquireSQL, releaseSQL, renewSQL, renewAllSQL, inspectSQL, listSQL string
}

var (
	_ locker.Backend      = (*leaseBackend)(nil)
	_ locker.Extender     = (*leaseBackend)(nil)
	_ locker.BatchRenewer = (*leaseBackend)(nil)
	_ locker.Inspector    = (*leaseBackend)(nil)
	_ locker.Closer       = (*leaseBackend)(nil)
)

//go:embed lease_acquire.sql
var leaseAcquireSQL string

//go:embed lease_release.sql
var leaseReleaseSQL string

//go:embed lease_renew.sql
var leaseRenewSQL string

//go:embed lease_inspect.sql
var leaseInspectSQL string

//go:embed lease_list.sql
var leaseListSQL string

func newLeaseBackend(ctx context.Context, pool *pgxpool.Pool, cfg *LeaseConfig) (*leaseBackend, error) {
	if pool == nil {
		return nil, invalidf("no Postgres pool")
	}
	table, err := nameOr("Table", cfg.Table, "locker_lease")
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, pool, cfg.Create, leaseTable(table)); err != nil {
		return nil, err
	}
	prepares, err := isDirect(ctx, pool)
	if err != nil {
		return nil, failed(err)
	}
	sql := func(file string) string { return statement(file, "locker_lease", table) }
	b := &leaseBackend{
		pool: pool, namespace: table[len(table)-1], reaper: newReaper(pool, table), prepares: new(atomic.Bool),
		acquireSQL: sql(leaseAcquireSQL), releaseSQL: sql(leaseReleaseSQL),
		renewSQL: sql(leaseRenewSQL), inspectSQL: sql(leaseInspectSQL), listSQL: sql(leaseListSQL),
	}
	b.prepares.Store(prepares)
	// One row that somebody keeps locked must not hold up the renewal of all the others.
	const lock = "FOR NO KEY UPDATE"
	b.renewAllSQL = sql(strings.Replace(leaseRenewSQL, lock, lock+" SKIP LOCKED", 1))
	return b, nil
}

// Info implements locker.Backend.
func (b *leaseBackend) Info() locker.Info {
	return locker.Info{
		Name: "postgres lease",
		Can: locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapExtend |
			locker.CapExpiry | locker.CapInterop | locker.CapInspect,
		Unit:      time.Microsecond, // timestamptz's
		MinTTL:    time.Millisecond,
		Deadlines: true, // pgx gives the connection up when ctx ends
	}
}

// Close implements locker.Closer. It leaves the pool as it is, and waits for the
// connection that it may have in use, or until ctx ends.
func (b *leaseBackend) Close(ctx context.Context) error {
	return errors.Join(b.reaper.close(ctx), closeOwned(ctx, b.owned))
}

// maxTries is how often a statement is sent whose transaction the server has rolled back
// because of another one: roles whose transactions are serializable, or repeatable reads,
// get that in the place of an answer. Whoever was first has committed by then.
const maxTries = 3

// query sends one statement and returns its rows, which count only if there is no error.
// The error is failed's.
func query[T any](ctx context.Context, b *leaseBackend, sql string, scan pgx.RowToFunc[T], args ...any) ([]T, error) {
	args = append([]any{nil}, args...)
	for try := 1; ; try++ {
		mode := b.mode()
		args[0] = mode
		rows, err := queryOnce(ctx, b.pool, sql, scan, args)
		again := hasCode(err, "40001", "40P01") && try < maxTries
		if !again && !b.mustNotPrepare(mode, err) {
			return rows, failed(err)
		}
	}
}

func queryOnce[T any](ctx context.Context, pool *pgxpool.Pool, sql string, scan pgx.RowToFunc[T], args []any) ([]T, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, unsent{err}
	}
	defer conn.Release()
	rows, _ := conn.Query(ctx, sql, args...) // its error is that of the rows
	// It reads to the end: the commit comes after the rows, and may still fail.
	return pgx.CollectRows(rows, scan)
}

// micros is d in the table's unit, rounded up.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
