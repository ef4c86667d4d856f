package pglock

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/go-locker/locker"
)

// page is how many held keys List asks for at once.
const page = 500

// Inspect implements locker.Inspector.
func (b *leaseBackend) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	holdings, err := b.holdings(ctx, b.inspectSQL, key)
	if err != nil || len(holdings) == 0 {
		return locker.Holding{}, err
	}
	return holdings[0].Holding, nil
}

// ForceRelease implements locker.Inspector.
func (b *leaseBackend) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	g := &leaseGrant{b: b, key: key, holder: holder}
	err := g.free(ctx)
	if errors.Is(err, locker.ErrLost) {
		return false, nil
	}
	return err == nil, err
}

// List implements locker.Inspector. It shows every key once, in the order of their bytes.
// It asks for a page at a time: a cursor would keep a connection, and a PgBouncer's.
func (b *leaseBackend) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	for after := ""; ; {
		holdings, err := b.holdings(ctx, b.listSQL, after, page)
		if err != nil {
			return err
		}
		for _, h := range holdings {
			if !yield(h.key, h.Holding) {
				return nil
			}
			after = h.key
		}
		if len(holdings) < page {
			return nil
		}
	}
}

type leaseHolding struct {
	key string
	locker.Holding
}

// holdings are the rows of lease_inspect.sql or lease_list.sql.
func (b *leaseBackend) holdings(ctx context.Context, sql string, args ...any) (holdings []leaseHolding, err error) {
	err = b.query(ctx, sql, func(rows pgx.Rows) error {
		var h leaseHolding
		var remaining *int64
		var token int64
		if err := rows.Scan(&h.key, &h.Holder, &remaining, &token); err != nil {
			return err
		}
		h.Remaining, h.Token = left(remaining), uint64(token)
		holdings = append(holdings, h)
		return nil
	}, args...)
	return holdings, err
}
