package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-locker/locker"
)

// maxBatch is how many grants one statement renews: what it sends and how long it keeps
// its rows locked are bounded.
const maxBatch = 1000

// errBusy: another transaction has the row locked, for a moment if it is an acquire that
// has lost a race, or for as long as SQL that is not ours does.
var errBusy = locker.NoEffect(errors.New("pglock: another transaction has locked the row"))

// Renew implements locker.Grant. A row that is locked is waited for until ctx ends.
func (g *leaseGrant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	return g.set(ctx, ttl, false)
}

// Extend implements locker.Extender.
func (b *leaseBackend) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	own, ok := g.(*leaseGrant)
	if !ok {
		return locker.Lease{}, foreign(g)
	}
	return own.set(ctx, ttl, true)
}

func (g *leaseGrant) set(ctx context.Context, ttl time.Duration, exactly bool) (lease locker.Lease, err error) {
	g.b.setAll(ctx, g.b.renewSQL, []locker.Renewal{{Grant: g, TTL: ttl}}, exactly, func(_ int, l locker.Lease, e error) {
		lease, err = l, e
	})
	return lease, err
}

// RenewAll implements locker.BatchRenewer. It does not wait for rows that another
// transaction has locked: those are not renewed, and can be tried again.
func (b *leaseBackend) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	first := 0
	for chunk := range slices.Chunk(renewals, maxBatch) {
		b.setAll(ctx, b.renewAllSQL, chunk, false, func(i int, l locker.Lease, err error) { answer(first+i, l, err) })
		first += len(chunk)
	}
}

// setAll sends lease_renew.sql, and answers for each of the renewals.
func (b *leaseBackend) setAll(ctx context.Context, sql string, renewals []locker.Renewal, exactly bool, answer func(int, locker.Lease, error)) {
	var (
		keys, holders  []string
		tokens, leases []int64
		positions      []int // of those that are sent, in renewals
	)
	for i, r := range renewals {
		g, ok := r.Grant.(*leaseGrant)
		if !ok {
			answer(i, locker.Lease{}, foreign(r.Grant))
			continue
		}
		keys, holders = append(keys, g.key), append(holders, g.holder)
		tokens, leases = append(tokens, g.token), append(leases, micros(r.TTL))
		positions = append(positions, i)
	}
	if len(positions) == 0 {
		return
	}
	rows, err := query(ctx, b, sql, pgx.RowToStructByPos[renewed], keys, holders, tokens, leases, exactly)
	if err != nil {
		for _, i := range positions {
			answer(i, locker.Lease{}, err)
		}
		return
	}
	for _, row := range rows {
		i := positions[row.N-1]
		if err := mine(row.Outcome); err != nil {
			answer(i, locker.Lease{}, err)
			continue
		}
		answer(i, leaseOf(renewals[i].TTL), nil)
	}
}

// renewed is a row of lease_renew.sql, which has one for each of its arguments.
type renewed struct {
	N       int
	Outcome string
}

// mine reads the outcome of lease_renew.sql and lease_release.sql.
func mine(outcome string) error {
	switch outcome {
	case "renewed", "freed":
		return nil
	case "taken":
		return &locker.LostError{Reason: locker.ReasonTaken}
	case "expired":
		return &locker.LostError{Reason: locker.ReasonExpired}
	case "busy":
		return errBusy
	}
	return fmt.Errorf("pglock: unexpected outcome %q", outcome)
}

func foreign(g locker.Grant) error { return invalidf("a grant of type %T is not this backend's", g) }
