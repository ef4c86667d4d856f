package pglock

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-locker/locker"
)

//go:embed advisory_take.sql
var takeSQL string

//go:embed advisory_give.sql
var giveSQL string

//go:embed advisory_undo.sql
var undoSQL string

var (
	cmdUndoTake = command{name: "undo", sql: text(undoSQL), batched: true, rank: -1}
	cmdGiveBack = command{name: "give", sql: text(giveSQL), batched: true, undo: &cmdUndoTake}
)

// takeBy is the command that takes locks, with tokens by an SQL expression.
func takeBy(token string) command {
	return command{name: "take", sql: strings.ReplaceAll(text(takeSQL), "locker_token", token), batched: true, rank: 1, undo: &cmdUndoTake}
}

// advisory implements locker.Backend by advisory locks.
type advisory struct {
	*sessions
	*inspector
	*listener
	take  command // returns a token for each number, or null
	token string  // the SQL expression
	clock bool
	owned func() // closes the pool, if Open made it
}

var (
	_ locker.Backend      = (*advisory)(nil)
	_ locker.Waker        = (*advisory)(nil)
	_ locker.BatchRenewer = (*advisory)(nil)
	_ locker.LossPusher   = (*advisory)(nil)
	_ locker.Inspector    = (*advisory)(nil)
	_ locker.Closer       = (*advisory)(nil)
)

// minSessionTTL is the shortest lifetime of a session. It has to be made in that time.
const minSessionTTL = 100 * time.Millisecond

// Info implements locker.Backend.
func (b *advisory) Info() locker.Info {
	can := locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapSessionHolder | locker.CapWakeUp |
		locker.CapPushLoss | locker.CapExpiry | locker.CapInterop | locker.CapInspect
	if b.clock {
		can |= locker.CapClockToken
	}
	return locker.Info{
		Name: "postgres advisory", Can: can, Unit: time.Millisecond, MinTTL: minSessionTTL,
		Deadlines: true, Multiplexed: true,
	}
}

// OnLoss implements locker.LossPusher.
func (b *advisory) OnLoss(report func(key, owner string, err error)) { b.report = report }

// TryAcquire implements locker.Backend.
func (b *advisory) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	number := b.inspector.number(req.Key)
	s, err := b.session(ctx, req.TTL, number)
	if err != nil {
		return nil, err
	}
	g := &grant{b: b, s: s, number: number, sessionGrant: sessionGrant{
		w: s.wire, key: req.Key, owner: req.Owner, ttl: s.ttl, taking: newCall(&b.take, number), since: time.Now(),
	}}
	if err := b.claim(s, g); err != nil {
		return nil, err
	}
	switch err := s.do(ctx, g.taking); {
	case err == nil && g.taking.rows[0][0] != nil:
		return g, g.mint(g.taking)
	case err == nil:
		b.drop(s, g, nil)
		return nil, b.refusal(ctx, s, number)
	case !g.mayHold(err):
		b.drop(s, g, nil)
		return nil, locker.NoEffect(failed(err))
	default:
		return g, err
	}
}

// refusal is the error for a key that somebody has: who that is, as far as it can be seen.
func (b *advisory) refusal(ctx context.Context, s *session, number int64) error {
	held := new(locker.HeldError)
	c := newCall(&cmdWho, number)
	if s.do(ctx, c) == nil {
		held.Holder, held.Remaining = holderOf(c.rows[0])
	}
	return held
}

// grant is an advisory lock on a session that others share.
type grant struct {
	sessionGrant
	b      *advisory
	s      *session
	number int64
	left   bool // guarded by sessions.mu; see leave
}

// mayHold reports whether the session may have the lock although taking it failed.
func (g *grant) mayHold(err error) bool {
	if err == nil || errors.Is(err, errNotSent) {
		return false
	}
	if ended := (*endError)(nil); errors.As(err, &ended) {
		return !ended.byServer
	}
	refused := (*pgconn.PgError)(nil)
	return !errors.As(err, &refused) // all that it locked has been unlocked again
}

// RenewAll implements locker.BatchRenewer: one statement for each session.
func (b *advisory) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	bySession := make(map[*session][]int)
	var all sync.WaitGroup
	for i, r := range renewals {
		g, ok := r.Grant.(*grant)
		if !ok { // on a session of its own
			all.Go(func() {
				lease, err := r.Grant.Renew(ctx, r.TTL)
				answer(i, lease, err)
			})
			continue
		}
		bySession[g.s] = append(bySession[g.s], i)
	}
	for s, indices := range bySession {
		all.Go(func() {
			err := s.do(ctx, newCallWith(&cmdSignOfLife))
			for _, i := range indices {
				lease, err := renewals[i].Grant.(*grant).renewed(err)
				answer(i, lease, err)
			}
		})
	}
	all.Wait()
}

// Release implements locker.Grant. What it sends stays on its way when ctx ends, and has
// an answer in any case: the server's, or the end of the session. A repetition waits for
// that.
func (g *grant) Release(ctx context.Context) error {
	if g.s.silent() > 0 { // else there will be an answer, also to what gives it back
		g.b.leave(g.s, g)
	}
	if !g.taking.wait(ctx) {
		g.b.unfinished(g.s)
		return ctx.Err()
	}
	refused := g.taking.err != nil || g.taking.rows[0][0] == nil
	switch {
	case refused && g.mayHold(g.taking.err):
		return g.afterEnd(ctx, g.taking.err)
	case refused:
		g.b.drop(g.s, g, nil)
		return nil
	}
	g.mu.Lock()
	if g.giving == nil {
		g.giving = newCall(&cmdGiveBack, g.number)
		g.b.drop(g.s, g, func() { g.s.start(g.giving) })
	}
	g.mu.Unlock()
	if !g.giving.wait(ctx) {
		g.b.unfinished(g.s)
		return ctx.Err()
	}
	g.b.leave(g.s, g)
	if g.giving.err == nil && string(g.giving.rows[0][0]) != "t" {
		return &locker.LostError{Reason: locker.ReasonExpired}
	}
	if g.s.ended() == nil {
		return nil // also after an error: the statement's undo has given it back then
	}
	return g.afterEnd(ctx, g.giving.err)
}

// Close implements locker.Closer.
func (b *advisory) Close(ctx context.Context) error {
	return errors.Join(b.listener.close(ctx), b.sessions.close(ctx), closeOwned(ctx, b.owned))
}
