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
	rows, err := query(ctx, b, b.acquireSQL, pgx.RowToStructByPos[acquired], g.key, g.holder, micros(g.ttl))
	switch {
	case err != nil && mayHaveRun(err):
		return g, err
	case err != nil:
		return nil, err
	case len(rows) == 0:
		return nil, &locker.HeldError{Key: req.Key}
	case rows[0].Token == nil:
		return nil, &locker.HeldError{Key: req.Key, Holder: *rows[0].Holder, Remaining: left(rows[0].Remaining)}
	}
	g.token = *rows[0].Token
	return g, nil
}

// acquired is a row of lease_acquire.sql.
type acquired struct {
	Token     *int64
	Holder    *string
	Remaining *int64
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
	number := Key(g.b.namespace, g.key)
	class, object := waitMark(number)
	rows, err := query(ctx, g.b, g.b.releaseSQL, pgx.RowToStructByPos[released],
		g.key, g.holder, g.token, class, object, notifyChannel, strconv.FormatInt(number, 10))
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return mine("expired")
	}
	return mine(rows[0].Outcome)
}

// released is a row of lease_release.sql.
type released struct {
	Outcome string
	Woken   *string
}
