package pglock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

var cmdSignOfLife = command{name: "live", sql: "SELECT 1", rank: 3}

// sessionGrant is what the grants on a session have in common, be it theirs alone or not.
type sessionGrant struct {
	w     *wire
	key   string
	owner string
	ttl   time.Duration
	since time.Time // not before there was a session: to make one may take longer than a lock lives
	token uint64

	taking *call // the call that gets the lock

	mu     sync.Mutex
	giving *call // nil: nobody has begun to give it back
}

// Token implements locker.Grant.
func (g *sessionGrant) Token() uint64 { return g.token }

// Lease implements locker.Grant.
func (g *sessionGrant) Lease() locker.Lease { return locker.Lease{TTL: g.ttl, Since: g.since} }

// Renew implements locker.Grant. Whatever a session sends renews all its locks.
func (g *sessionGrant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	if ttl != g.ttl {
		return locker.Lease{}, locker.ErrUnsupported
	}
	return g.renewed(g.w.do(ctx, newCallWith(&cmdSignOfLife)))
}

// renewed is the answer to a renewal, after its session's.
func (g *sessionGrant) renewed(err error) (locker.Lease, error) {
	g.mu.Lock()
	given := g.giving != nil
	g.mu.Unlock()
	switch {
	case given:
		return locker.Lease{}, &locker.LostError{Reason: locker.ReasonExpired}
	case g.w.ended() != nil:
		return locker.Lease{}, &locker.LostError{Reason: locker.ReasonSession, Err: g.w.ended()}
	case err != nil:
		return locker.Lease{}, failed(err)
	}
	return locker.Lease{TTL: g.ttl}, nil
}

// mint reads the token from the answer of c.
func (g *sessionGrant) mint(c *call) (err error) {
	g.token, err = strconv.ParseUint(string(c.rows[0][0]), 10, 64)
	return err
}

// afterEnd is what giving something back comes to, with err, on a session that has ended:
// nil is an answer that came before. Without one it is given back by the session's end, for
// which this waits: not for long, and not beyond the deadline of ctx. What ends ctx otherwise
// is the news of that end. If it is not known then that the server has ended the session, the
// grant is lost with it; and so it is if the session has ended before anything was sent,
// unless that is our doing.
func (g *sessionGrant) afterEnd(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	patience := stuckAfter
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline))
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-g.w.settled:
	case <-t.C:
		if patience < stuckAfter {
			return context.DeadlineExceeded
		}
	}
	if g.w.over() && (!errors.Is(err, errNotSent) || errors.Is(err, locker.ErrClosed)) {
		return nil
	}
	return &locker.LostError{Reason: locker.ReasonSession, Err: err}
}
