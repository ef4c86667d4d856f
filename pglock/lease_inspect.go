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
	rows, err := query(ctx, b, b.inspectSQL, pgx.RowToStructByPos[holding], key)
	if err != nil || len(rows) == 0 {
		return locker.Holding{}, err
	}
	return rows[0].shown(), nil
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
		rows, err := query(ctx, b, b.listSQL, pgx.RowToStructByPos[holding], after, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if !yield(row.Key, row.shown()) {
				return nil
			}
			after = row.Key
		}
		if len(rows) < page {
			return nil
		}
	}
}

// holding is a row of lease_inspect.sql or lease_list.sql.
type holding struct {
	Key, Holder string
	Remaining   *int64
	Token       int64
}

func (h holding) shown() locker.Holding {
	return locker.Holding{Holder: h.Holder, Remaining: left(h.Remaining), Token: uint64(h.Token)}
}
