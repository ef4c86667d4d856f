package locker

import (
	"context"
	"errors"
	"time"
)

// call is one Acquire or TryAcquire under way.
type call struct {
	ctx      context.Context
	key      string
	set      settings
	start    instant    // for the observer
	held     *HeldError // the last definite answer, if it was "held"
	last     error      // the driver's last error
	announce bool       // EventWaiting was sent
	req      Request    // the last attempt's
	sent     stamp      // taken before it was sent
}

// Acquire implements Locker.
func (c *core) Acquire(ctx context.Context, key string, opts ...Option) (Lock, error) {
	cl, err := c.call(ctx, key, opts)
	if err != nil {
		return nil, c.fail("acquire", key, err)
	}
	ln, err := c.lead(&cl)
	if err != nil {
		return nil, c.fail("acquire", key, err)
	}
	h, err := c.pursue(ln, &cl)
	if err != nil {
		return nil, c.fail("acquire", key, err)
	}
	return h, nil
}

// TryAcquire implements Locker.
func (c *core) TryAcquire(ctx context.Context, key string, opts ...Option) (Lock, error) {
	cl, err := c.call(ctx, key, opts)
	if err == nil {
		var h *hold
		if h, err = c.try(&cl); err == nil {
			return h, nil
		}
	}
	return nil, c.fail("acquire", key, err)
}

func (c *core) call(ctx context.Context, key string, opts []Option) (call, error) {
	cl := call{ctx: ctx, key: key}
	if ctx.Err() != nil {
		return cl, cl.ended()
	}
	if err := ValidKey(key); err != nil {
		return cl, err
	}
	set, err := c.settings(opts)
	if err != nil {
		return cl, err
	}
	cl.set = set
	if c.observer != nil {
		cl.start = c.now()
	}
	return cl, nil
}

// request makes the next attempt's request. Its owner is fresh: the undo of the
// attempt before may still be under way, and must not meet this one.
func (cl *call) request() Request {
	return Request{Key: cl.key, Owner: newOwner(), Label: cl.set.label, TTL: cl.set.ttl}
}

// over reports whether the call's context has ended. A driver can see a deadline
// pass a moment before the context does.
func (cl *call) over() bool {
	if cl.ctx.Err() != nil {
		return true
	}
	end, ok := cl.ctx.Deadline()
	if !ok || time.Now().Before(end) {
		return false
	}
	<-cl.ctx.Done()
	return true
}

// note remembers what stood in the call's way.
func (cl *call) note(err error) {
	switch he, held := err.(*HeldError); {
	case held:
		cl.held = he
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// The context's own error says that already.
	default:
		cl.last = err
	}
}

// waiting tells the observer, once a call.
func (c *core) waiting(cl *call, err error) {
	if !cl.announce {
		cl.announce = true
		c.emit(Event{Kind: EventWaiting, Key: cl.key, Label: cl.set.label, Err: err})
	}
}

// lead waits until the call leads the key's line. It returns without the lead if
// there is an error.
func (c *core) lead(cl *call) (*line, error) {
	c.mu.Lock()
	if c.closing {
		c.unlock()
		return nil, ErrClosed
	}
	ln := c.line(cl.key)
	if ln.free() {
		c.take(ln)
		c.unlock()
		return ln, nil
	}
	w := &waiter{turn: make(chan struct{})}
	place := ln.waiters.PushBack(w)
	c.waiting(cl, ln.blocked(c.now()))
	c.unlock()

	select {
	case <-w.turn:
		return ln, nil
	case <-cl.ctx.Done():
	case <-c.ctx.Done():
	}
	// The turn may have come at the same moment. Whoever leaves passes it on, so
	// that it is not lost with him.
	c.mu.Lock()
	cl.note(ln.blocked(c.now()))
	if w.led {
		c.leave(ln)
	} else {
		ln.waiters.Remove(place)
		c.unwatch(ln)
	}
	c.unlock()
	return nil, c.over(cl)
}

// over is the error of a call that gives up because its context or the Locker
// ended.
func (c *core) over(cl *call) error {
	if cl.ctx.Err() != nil {
		return cl.ended()
	}
	return ErrClosed
}
