package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// isDirect reports whether the connections of a pool lead to the server itself, and its
// settings want statements prepared, as they do by default: then the server need not parse
// and plan each one anew, which is more than half of its work. A pooler tells its clients
// numbers of its own in the place of the process ids.
func isDirect(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	cfg := pool.Config().ConnConfig
	if cfg.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement || cfg.StatementCacheCapacity <= 0 {
		return false, nil
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, unsent{err}
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return false, err
	}
	return pid == conn.Conn().PgConn().PID(), nil
}

// mode is how statements are sent. Other than a prepared one, the protocol's unnamed one
// belongs to nobody else behind a PgBouncer; and it takes no account of
// standard_conforming_strings, as the simple protocol has to.
func (b *leaseBackend) mode() pgx.QueryExecMode {
	if b.prepares.Load() {
		return pgx.QueryExecModeCacheStatement
	}
	return pgx.QueryExecModeExec
}

// mustNotPrepare reports whether err, of a statement sent by mode, is that what was prepared
// is not there, or is another's, or is out of date. Nothing was done then, and no more are
// prepared: somebody else empties the sessions, or a pooler has come in between.
func (b *leaseBackend) mustNotPrepare(mode pgx.QueryExecMode, err error) bool {
	if mode != pgx.QueryExecModeCacheStatement || !hasCode(err, "26000", "42P05", "0A000") {
		return false
	}
	b.prepares.Store(false)
	return true
}
