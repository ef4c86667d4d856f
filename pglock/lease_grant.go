package pglock

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-locker/locker"
)

// leaseGrant is one holder's value in one row.
type leaseGrant struct {
	b      *leaseBackend
	key    string
	holder string
	token  int64 // 0: the answer is not known
	ttl    time.Duration
}

// TryAcquire implements locker.Backend.
func (b *leaseBackend) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	g := &leaseGrant{b: b, key: req.Key, holder: req.Holder(), ttl: req.TTL}
	held := &locker.HeldError{Key: req.Key}
	err := b.query(ctx, b.acquireSQL, func(rows pgx.Rows) error {
		var token, remaining *int64
		var holder *string
		if err := rows.Scan(&token, &holder, &remaining); err != nil {
			return err
		}
		if token != nil {
			g.token = *token
			return nil
		}
		held.Holder, held.Remaining = *holder, left(remaining)
		return nil
	}, g.key, g.holder, micros(g.ttl))
	switch {
	case err != nil && mayHaveRun(err):
		g.token = 0 // it may have been told, and not been committed
		return g, err
	case err != nil:
		return nil, err
	case g.token == 0:
		return nil, held
	}
	return g, nil
}

// left reads what remains of a lease: nil is one without an end.
func left(remaining *int64) time.Duration {
	if remaining == nil {
		return 0
	}
	// A lease may end between two looks at the clock.
	return time.Duration(max(*remaining, 1)) * time.Microsecond
}

// Token implements locker.Grant.
func (g *leaseGrant) Token() uint64 { return uint64(g.token) }

// Lease implements locker.Grant.
func (g *leaseGrant) Lease() locker.Lease { return leaseOf(g.ttl) }

// leaseOf is what the table holds for a lease of ttl.
func leaseOf(ttl time.Duration) locker.Lease {
	return locker.Lease{TTL: time.Duration(micros(ttl)) * time.Microsecond}
}

// Release implements locker.Grant.
func (g *leaseGrant) Release(ctx context.Context) error {
	err := g.free(ctx)
	if err == nil {
		g.b.reaper.pass()
	}
	return err
}

// free sends lease_release.sql.
func (g *leaseGrant) free(ctx context.Context) error {
	outcome := "expired"
	number := Key(g.b.namespace, g.key)
	class, object := waitMark(number)
	err := g.b.query(ctx, g.b.releaseSQL, func(rows pgx.Rows) error {
		return rows.Scan(&outcome, nil)
	}, g.key, g.holder, g.token, class, object, notifyChannel, strconv.FormatInt(number, 10))
	if err != nil {
		return err
	}
	return mine(outcome)
}
