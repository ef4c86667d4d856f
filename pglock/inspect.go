package pglock

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-locker/locker"
)

//go:embed advisory_who.sql
var whoSQL string

//go:embed advisory_list.sql
var listSQL string

//go:embed advisory_end.sql
var endSQL string

var cmdWho = command{name: "who", sql: text(whoSQL), batched: true, rank: 2}

// inspector shows advisory locks to operators, over the caller's pool: what it asks is
// true whatever session it is asked on.
type inspector struct {
	pool   *pgxpool.Pool
	number func(key string) int64
}

// holdingOf reads a row of pid, application_name, and the milliseconds that the session
// has been idle. It is nil if nobody holds the lock.
func holdingOf(row [][]byte) *locker.Holding {
	if row[0] == nil {
		return nil
	}
	idle := time.Duration(-1)
	if ms, err := strconv.ParseInt(string(row[2]), 10, 64); err == nil {
		idle = time.Duration(ms) * time.Millisecond
	}
	h := sessionHolding(string(row[0]), string(row[1]), idle)
	return &h
}

// holderOf is what a HeldError shows of a row that holdingOf reads.
func holderOf(row [][]byte) (holder string, remaining time.Duration) {
	if h := holdingOf(row); h != nil {
		return h.Holder, h.Remaining
	}
	return "", 0
}

// Inspect implements locker.Inspector.
func (i *inspector) Inspect(ctx context.Context, key string) (h locker.Holding, err error) {
	err = each(ctx, i.pool, func(row [][]byte) bool {
		if found := holdingOf(row); found != nil {
			h = *found
		}
		return true
	}, cmdWho.sql, []int64{i.number(key)})
	return h, err
}

// ForceRelease implements locker.Inspector. It ends the session, and with it all its
// locks.
func (i *inspector) ForceRelease(ctx context.Context, key, holder string) (done bool, err error) {
	pid, application, ok := parseHolder(holder)
	if !ok {
		return false, nil
	}
	err = each(ctx, i.pool, func(row [][]byte) bool {
		done = isTrue(row)
		return true
	}, text(endSQL), i.number(key), pid, application)
	return done, err
}

// List implements locker.Inspector. Keys are shown as numbers, since no more is known of
// them.
func (i *inspector) List(ctx context.Context, yield func(key string, h locker.Holding) bool) error {
	return each(ctx, i.pool, func(row [][]byte) bool {
		h := holdingOf(row[1:])
		return h == nil || yield(string(row[0]), *h)
	}, text(listSQL))
}

// each calls yield with the rows of a query, as text, until it returns false.
func each(ctx context.Context, pool *pgxpool.Pool, yield func(row [][]byte) bool, query string, args ...any) error {
	rows, err := pool.Query(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return failed(err)
	}
	defer rows.Close()
	for rows.Next() {
		if !yield(rows.RawValues()) {
			return nil
		}
	}
	return failed(rows.Err())
}

// isTrue reads a row of one truth value.
func isTrue(row [][]byte) bool { return string(row[0]) == "t" }
