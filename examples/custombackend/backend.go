//go:build linux || darwin

package custombackend

import (
	"context"
	"time"

	"github.com/go-locker/locker"
)

// New opens the Locker on the directory dir, which it makes if it is not there. A nil
// cfg stands for the defaults. It waits for the guard, and no longer than ctx.
func New(ctx context.Context, dir string, cfg *locker.Config) (locker.Locker, error) {
	b, err := NewBackend(ctx, dir)
	if err != nil {
		return nil, err
	}
	return locker.New(b, cfg) // waiting, renewal, deadlines, loss, undo and events are in there
}

// NewBackend is New for those who wrap the backend.
func NewBackend(ctx context.Context, dir string) (locker.Backend, error) {
	d, err := openDirectory(ctx, dir)
	if err != nil {
		return nil, err
	}
	return d, nil
}

var (
	_ locker.Backend = (*directory)(nil)
	_ locker.Grant   = (*grant)(nil)
)

// Info promises what is kept, and no more. CapWakeUp is not in it: nobody is told of
// a release, so the Locker looks again by itself. Local is not set, because other
// processes take part, and Deadlines is not, because a disk may hang.
func (d *directory) Info() locker.Info {
	return locker.Info{
		Name: "file",
		Can: locker.CapExclusive | locker.CapToken | locker.CapHolder |
			locker.CapExtend | locker.CapExpiry | locker.CapInspect,
	}
}

// TryAcquire makes one attempt. Looking at the key, minting the token and writing the
// file are one step, because only one process of the machine is in a section.
func (d *directory) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported // never something less instead
	}
	var g *grant
	err := d.exclusive(ctx, func(s section) error {
		e, err := s.read(req.Key)
		if err != nil {
			return err // an error is an error: neither "held" nor "free"
		}
		ends := s.now + req.TTL
		switch {
		case !s.live(e):
			token, err := s.mint()
			if err != nil {
				return err
			}
			g = &grant{d, req.Key, req.Owner, token, req.TTL}
			return s.write(entry{ends, d.boot, token, req.Holder(), req.Key})
		case e.owner() == req.Owner:
			// This very command was sent before, and succeeded: so has this one. The
			// lease it was given began then; the one to be reported begins now.
			g = &grant{d, req.Key, req.Owner, e.Token, req.TTL}
			return s.prolong(req.Key, ends)
		}
		return &locker.HeldError{Key: req.Key, Holder: e.Holder, Remaining: e.Ends - s.now}
	})
	if g == nil {
		return nil, err // for certain nothing was taken. A nil *grant would not be a nil Grant
	}
	return g, err // with an error, if the write may have been done: the Locker undoes it
}

// grant is one owner's hold on a key. It never changes, so it is safe for concurrent
// use: what is the case now stands in the store.
type grant struct {
	d          *directory
	key, owner string
	token      uint64
	ttl        time.Duration
}

// Token is the fencing token.
func (g *grant) Token() uint64 { return g.token }

// Lease is the life as granted. Without Since the Locker counts it from before it
// called TryAcquire, which is earlier than the store does: so it ends in time.
func (g *grant) Lease() locker.Lease { return locker.Lease{TTL: g.ttl} }

// Renew sets what is left of the lease to ttl.
func (g *grant) Renew(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	return g.set(ctx, ttl, false)
}

func (g *grant) set(ctx context.Context, ttl time.Duration, shorten bool) (locker.Lease, error) {
	err := g.d.exclusive(ctx, func(s section) error { return g.setIn(s, ttl, shorten) })
	return locker.Lease{TTL: ttl}, err
}

func (g *grant) setIn(s section, ttl time.Duration, shorten bool) error {
	e, err := g.mine(s)
	if err != nil {
		return err // the key is not taken again: it may be another's by now
	}
	ends := s.now + ttl
	if !shorten {
		ends = max(ends, e.Ends) // an Extend may have come in between
	}
	return s.prolong(g.key, ends)
}

// Release gives the key back.
func (g *grant) Release(ctx context.Context) error {
	return g.d.exclusive(ctx, func(s section) error {
		if _, err := g.mine(s); err != nil {
			return err
		}
		return s.remove(g.key)
	})
}

// mine returns what the store shows if it is this grant: the same owner, and a lease
// that is not over. The comparison and what follows it are in one section: no other
// process takes the key in between.
func (g *grant) mine(s section) (entry, error) {
	e, err := s.read(g.key)
	switch {
	case err != nil:
		return entry{}, err
	case !s.live(e):
		return entry{}, &locker.LostError{Reason: locker.ReasonExpired}
	case e.owner() != g.owner:
		return entry{}, &locker.LostError{Reason: locker.ReasonTaken}
	}
	return e, nil
}
