package locker

import (
	"context"
	"errors"
	"strings"
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
	if err := validKey(key); err != nil {
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

// ended is the error of a call whose context ended.
func (cl *call) ended() error { return ended(cl.ctx, cl.held, cl.last) }

func ended(ctx context.Context, held *HeldError, last error) error {
	e := &endedError{err: ctx.Err(), held: held, last: last}
	if cause := context.Cause(ctx); cause != e.err {
		e.cause = cause
	}
	return e
}

// endedError matches the context's error and cause, and what stood in the way.
type endedError struct {
	err, cause error
	held       *HeldError
	last       error
}

func (e *endedError) Error() string {
	var b strings.Builder
	b.WriteString(e.err.Error())
	if e.cause != nil {
		b.WriteString(" (" + e.cause.Error() + ")")
	}
	if e.held != nil {
		b.WriteString("; " + e.held.Error())
	}
	if e.last != nil {
		b.WriteString("; last error: " + e.last.Error())
	}
	return b.String()
}

func (e *endedError) Unwrap() []error {
	errs := []error{e.err}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	if e.held != nil {
		errs = append(errs, e.held)
	}
	if e.last != nil {
		errs = append(errs, e.last)
	}
	return errs
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

// try makes the one attempt of a TryAcquire, or takes over the answer of whoever
// leads the line already.
func (c *core) try(cl *call) (*hold, error) {
	c.mu.Lock()
	for {
		if c.closing {
			c.unlock()
			return nil, ErrClosed
		}
		ln := c.line(cl.key)
		if ln.free() {
			c.take(ln)
			c.unlock()
			return c.tryOnce(ln, cl)
		}
		now := c.now()
		if err := ln.blocked(now); err != nil {
			c.unlock()
			return nil, err
		}
		// The leader's attempt is under way. Its answer, when it comes, is newer
		// than this call, even if the line has gone on or is forgotten by then.
		for ln.answer.at < now || ln.answer.err == nil {
			change := ln.change()
			c.unlock()
			select {
			case <-change:
			case <-cl.ctx.Done():
				return nil, cl.ended()
			case <-c.ctx.Done():
				return nil, ErrClosed
			}
			c.mu.Lock()
			if ln.holder != nil || c.lines[cl.key] != ln {
				break
			}
		}
		if ln.answer.err != nil && ln.answer.at >= now {
			err := ln.answer.err
			c.unlock()
			return nil, err
		}
	}
}

func (c *core) tryOnce(ln *line, cl *call) (h *hold, err error) {
	leads := true
	defer func() {
		if leads { // the backend panicked
			c.leaveNow(ln)
		}
	}()
	g, err := c.attempt(cl, nil, nil)
	leads = false
	switch {
	case err == nil:
		if h, err = c.adopt(ln, cl, g); err == nil {
			return h, nil
		}
		c.mu.Lock()
	case err == errAbandoned:
		err = c.over(cl)
		c.mu.Lock()
	default:
		c.mu.Lock()
		c.publish(ln, err, 0)
	}
	c.leave(ln)
	c.unlock()
	return nil, err
}

// publish keeps a leader's answer for those who do not overtake. c.mu is held.
func (c *core) publish(ln *line, err error, valid time.Duration) {
	now := c.now()
	ln.answer = answer{err: err, at: now, until: now + valid}
	ln.signal()
}
