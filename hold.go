package locker

import (
	"context"
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

// margin is how much earlier than the store a holder stops: time for the loss to
// be seen, and for clocks that do not run alike.
func margin(ttl time.Duration) time.Duration {
	return min(max(ttl/20, 5*time.Millisecond), 250*time.Millisecond, ttl/4)
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
	switch {
	case c.closing:
		err = ErrClosed
	case ln.early != nil && ln.early.owner == h.req.Owner:
		lost := lostError(ln.early.err)
		lost.Key = cl.key
		err = lost
	case now >= h.end:
		err = &LostError{Key: cl.key, Reason: ReasonExpired}
	}
	ln.early = nil
	if err != nil {
		c.unlock()
		c.undo(cl.ctx, g)
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

// stamp is the moment before a request is sent: what a lease is counted from.
type stamp struct {
	at    instant
	slept time.Duration
}

func (c *core) stamp() stamp { return stamp{at: c.now(), slept: c.asleep()} }

// count sets end by a lease that the store confirmed in answer to a request sent
// at s.
func (h *hold) count(lease Lease, s stamp) {
	if !lease.Since.IsZero() {
		s.at = lease.Since.Sub(h.c.epoch)
	}
	ttl := lease.TTL
	if ttl <= 0 {
		ttl = h.ttl
	}
	if h.cap > 0 {
		ttl = min(ttl, h.cap)
	}
	h.ttl = ttl
	h.end, h.slept = s.at+ttl-margin(ttl), s.slept
	if h.renews {
		h.renewal.at = s.at + ttl/3
	} else {
		h.renewal.at = never
	}
}

// sleepJitter is what two looks at the machine's sleep may differ by without any:
// its two clocks are not read at one instant.
const sleepJitter = time.Millisecond

// countSleep takes off what the machine has slept since end was set. The clock stood
// still, and the store's did not.
func (h *hold) countSleep(slept time.Duration) {
	if grown := slept - h.slept; grown > sleepJitter {
		h.end -= grown
		h.slept = slept
		if h.renewal.at != never {
			h.renewal.at -= grown
		}
	}
}

// deadline is when the hold ends unless it is renewed.
func (h *hold) deadline() instant {
	if h.maxAt > 0 {
		return min(h.end, h.maxAt)
	}
	return h.end
}

// checkClock ends the hold if its time is over.
func (c *core) checkClock(h *hold) {
	if h.err != nil {
		return
	}
	h.countSleep(c.asleep())
	now := c.now()
	switch {
	case now < h.deadline():
	case h.maxAt > 0 && now >= h.maxAt && h.maxAt <= h.end:
		c.lose(h, &LostError{Reason: ReasonMaxHold})
	default:
		c.lose(h, &LostError{Reason: ReasonExpired, Err: h.renewal.lastErr})
	}
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
	switch ln := c.lines[key]; {
	case ln == nil:
	case ln.holder != nil && ln.holder.req.Owner == owner:
		c.lose(ln.holder, lostError(err))
	case ln.led:
		ln.early = &earlyLoss{owner, err}
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

// storeEnd is when the store lets the key go by itself, or a little earlier.
func (h *hold) storeEnd() instant { return h.end + margin(h.ttl) }

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

// Extend implements Lock.
func (h *hold) Extend(ctx context.Context, ttl time.Duration) error {
	return h.c.fail("extend", h.req.Key, h.extend(ctx, ttl))
}

func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	if err := validTTL(ttl); err != nil {
		return err
	}
	c := h.c
	if ctx.Err() != nil {
		return ended(ctx, nil, nil)
	}
	// One at a time: which of two Extends the store saw last could not be known.
	slot := h.extendSlot()
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return ended(ctx, nil, nil)
	case <-h.Done():
		return h.Err()
	}

	ttl = c.roundTTL(ttl)
	c.mu.Lock()
	c.checkClock(h)
	switch {
	case h.err != nil:
		c.unlock()
		return h.err
	case c.extender == nil && ttl != h.ttl:
		c.unlock()
		return ErrUnsupported
	}
	s := c.stamp()
	before := h.cap
	if ttl < h.ttl {
		// The store may act on this at any time from now on, answered or not.
		h.cap = ttl
		h.shorten(Lease{TTL: ttl}, s)
	}
	// A renewal under way may be older at the store than this: do not count it.
	h.renewal.abandon()
	c.schedule(h)
	c.unlock()

	lease, err := guarded(c, ctx, h.Done(), nil, func(ctx context.Context) (Lease, error) {
		if c.extender == nil {
			return h.grant.Renew(ctx, ttl)
		}
		return c.extender.Extend(ctx, h.grant, ttl)
	}, nil)

	c.mu.Lock()
	defer c.unlock()
	c.checkClock(h)
	switch {
	case h.err != nil:
		return h.err
	case err == nil:
		h.cap = before // the store has this one: a later, longer one may count
		h.count(lease, s)
		c.schedule(h)
		c.checkClock(h)
		return h.err
	case errors.Is(err, ErrLost):
		c.lose(h, lostError(err))
		return h.err
	}
	if !isNoEffect(err) && (h.cap == 0 || ttl < h.cap) {
		// It may reach the store yet, and after a later one that is longer.
		h.cap = ttl
	}
	if err == errAbandoned && ctx.Err() == nil {
		return ErrClosed
	}
	if ctx.Err() != nil {
		return ended(ctx, nil, nil)
	}
	return err
}

func (h *hold) extendSlot() chan struct{} {
	h.c.mu.Lock()
	defer h.c.unlock()
	if h.extends == nil {
		h.extends = make(chan struct{}, 1)
	}
	return h.extends
}

// shorten counts a lease only if it ends earlier than what is counted already.
func (h *hold) shorten(lease Lease, s stamp) {
	end, slept := h.end, h.slept
	h.count(lease, s)
	if end < h.end {
		h.end, h.slept = end, slept
	}
}
