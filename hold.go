package locker

import (
	"errors"
	"time"
)

// hold is one grant in the caller's hands: the Lock of New's Locker.
//
// It is held until Release is called or it is lost; nothing brings it back. From
// err on, everything is guarded by core.mu.
type hold struct {
	c       *core
	ln      *line
	grant   Grant
	req     Request
	granted instant
	maxAt   instant // the end by WithMaxHold; 0: none
	renews  bool    // by itself

	err  error         // nil while held
	done chan struct{} // made on demand
	ttl  time.Duration
	cap  time.Duration // what a TTL counts at most; 0: no limit. See Extend.

	// end is when the lease counts as over, somewhat before the store ends it.
	// slept is the machine's sleep that it takes into account.
	end   instant
	slept time.Duration

	plan    planned
	renewal renewal
	extends chan struct{} // the one slot of Extend, made on demand
	ending  ending
}

var _ Lock = (*hold)(nil)

// GrantOf is the grant in the store behind a lock of New's Locker, for packages that know
// their own backend's grants. It is nil for another lock. The Locker renews and releases it;
// nobody else may.
func GrantOf(k Lock) Grant {
	if h, ok := k.(*hold); ok {
		return h.grant
	}
	return nil
}

// adopt makes the call's grant a hold, which takes over the line from its leader.
// A grant that came too late, or after Close, is given back, and the call leads on.
func (c *core) adopt(ln *line, cl *call, g Grant) (*hold, error) {
	h := &ln.first
	if h.c != nil {
		h = new(hold)
	}
	*h = hold{c: c, ln: ln, grant: g, req: cl.req, renews: cl.set.renew, ttl: cl.set.ttl}
	c.mu.Lock()
	now := c.now()
	h.granted = now
	h.count(g.Lease(), cl.sent)
	if cl.set.maxHold > 0 {
		h.maxAt = now + cl.set.maxHold
	}
	h.countSleep(c.asleep())
	var err error
	switch early := ln.early[h.req.Owner]; {
	case c.closing:
		err = ErrClosed
	case early != nil:
		lost := lostError(early)
		lost.Key = cl.key
		err = lost
	case now >= h.end:
		err = &LostError{Key: cl.key, Reason: ReasonExpired}
	}
	ln.early = nil
	if err != nil {
		c.unlock()
		c.undo(cl.ctx, cl.req.Owner, g)
		return nil, err
	}
	ln.holder, ln.led, ln.answer = h, false, answer{}
	if ln.changed != nil {
		// A short hold can be over before those who ask have looked at it.
		ln.answer = answer{err: h.held(now), at: now}
		ln.signal()
	}
	c.unwatch(ln)
	c.schedule(h)
	c.end()
	if c.observer != nil {
		e := h.event(EventAcquired, nil)
		e.Wait, e.Held = now-cl.start, 0
		c.emit(e)
	}
	c.unlock()
	return h, nil
}

// lose ends the hold by a loss and lets the next in line try.
func (c *core) lose(h *hold, err *LostError) {
	err.Key = h.req.Key
	c.finish(h, err)
	if h.ln.holder == h {
		h.ln.holder = nil
		c.advance(h.ln)
	}
	if c.observer != nil {
		c.emit(h.event(EventLost, err))
	}
}

// finish ends the hold: nothing renews it from here on.
func (c *core) finish(h *hold, err error) {
	h.err = err
	if h.done != nil {
		close(h.done)
	}
	c.unschedule(h)
}

// lossReported is what a LossPusher calls.
func (c *core) lossReported(key, owner string, err error) {
	c.mu.Lock()
	defer c.unlock()
	if lost := lostError(err); c.owing[owner] != nil && lost.Reason == ReasonSession {
		c.owing[owner].lost(lost)
	}
	switch ln := c.lines[key]; {
	case ln == nil:
	case ln.holder != nil && ln.holder.req.Owner == owner:
		h := ln.holder
		c.checkClock(h)
		if h.err == nil { // else its time had ended it before
			c.lose(h, lostError(err))
		}
	case ln.led:
		if ln.early == nil {
			ln.early = make(map[string]error)
		}
		ln.early[owner] = lostError(err)
	}
}

// lostError makes a fresh LostError of a backend's word that a grant is lost.
func lostError(err error) *LostError {
	if le := (*LostError)(nil); errors.As(err, &le) {
		return &LostError{Reason: le.Reason, Err: le.Err}
	}
	return &LostError{Reason: ReasonExpired, Err: err}
}

// held is what the hold looks like to another caller of this Locker.
func (h *hold) held(now instant) *HeldError {
	return &HeldError{Key: h.req.Key, Holder: h.req.Holder(), Remaining: max(h.storeEnd()-now, time.Nanosecond)}
}

func (h *hold) event(kind EventKind, err error) Event {
	return Event{
		Kind: kind, Key: h.req.Key, Owner: h.req.Owner, Label: h.req.Label,
		Token: h.grant.Token(), Held: h.c.now() - h.granted, Err: err,
	}
}

// Key implements Lock.
func (h *hold) Key() string { return h.req.Key }

// Owner implements Lock.
func (h *hold) Owner() string { return h.req.Owner }

// Token implements Lock.
func (h *hold) Token() uint64 { return h.grant.Token() }

// TTL implements Lock.
func (h *hold) TTL() time.Duration {
	h.c.mu.Lock()
	defer h.c.unlock()
	return h.ttl
}

// Deadline implements Lock.
func (h *hold) Deadline() time.Time {
	h.c.mu.Lock()
	defer h.c.unlock()
	if h.err == nil {
		h.countSleep(h.c.asleep())
	}
	return h.c.epoch.Add(h.deadline())
}

// Done implements Lock.
func (h *hold) Done() <-chan struct{} {
	h.c.mu.Lock()
	defer h.c.unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.err != nil {
			close(h.done)
		}
	}
	return h.done
}

// Err implements Lock.
func (h *hold) Err() error {
	h.c.mu.Lock()
	defer h.c.unlock()
	h.c.checkClock(h)
	return h.err
}
