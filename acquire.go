package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
)

// call is one Acquire or TryAcquire under way.
type call struct {
	ctx      context.Context
	key      string
	set      settings
	start    instant
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
	if he, ok := err.(*HeldError); ok {
		return nil, he // it names the key itself
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
	cl.set, cl.start = set, c.now()
	return cl, nil
}

// request makes the next attempt's request. Its owner is fresh: the undo of the
// attempt before may still be under way, and must not meet this one.
func (cl *call) request() Request {
	return Request{Key: cl.key, Owner: newOwner(), Label: cl.set.label, TTL: cl.set.ttl}
}

// ended is the error of a call whose context ended.
func (cl *call) ended() error {
	e := &endedError{err: cl.ctx.Err(), held: cl.held, last: cl.last}
	if cause := context.Cause(cl.ctx); cause != e.err {
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

// note remembers what stood in the call's way.
func (cl *call) note(err error) {
	if he := (*HeldError)(nil); errors.As(err, &he) {
		cl.held = he
	} else if err != nil {
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
		ln.led = true
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
			ln.led = true
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

func (c *core) tryOnce(ln *line, cl *call) (*hold, error) {
	g, err := c.attempt(cl, nil, nil)
	switch {
	case err == nil:
		var h *hold
		if h, err = c.adopt(ln, cl, g); err == nil {
			return h, nil
		}
		c.mu.Lock()
	case err == errAbandoned:
		err = c.over(cl)
		c.mu.Lock()
	default:
		if he := (*HeldError)(nil); errors.As(err, &he) {
			err = he
		}
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

// pursue is the leader's work for an Acquire: try, wait, try again. It gives up
// the lead in every case: to the hold, or to the next in line.
func (c *core) pursue(ln *line, cl *call) (*hold, error) {
	var (
		p     pursuit
		err   error
		grant Grant
	)
	if !c.info.Local {
		p.flight = make(chan struct{}, maxInFlight)
	}
	for {
		if cl.ctx.Err() != nil || c.ctx.Err() != nil {
			err = c.over(cl)
			break
		}
		grant, err = c.attempt(cl, p.place, p.flight)
		if err == nil {
			var h *hold
			if h, err = c.adopt(ln, cl, grant); err == nil {
				c.leavePlace(cl, &p)
				return h, nil
			}
			cl.held = nil // a definite answer, and not "held"
		}
		if err == ErrClosed {
			break
		}
		if err == errAbandoned {
			// By ctx or Close: the loop's head says so. By the bound: try again, but
			// not in the place whose owner the abandoned claim still carries.
			c.leavePlace(cl, &p)
			continue
		}
		if he := (*HeldError)(nil); errors.As(err, &he) {
			cl.held = he
			p.backoff.reset()
			pushed, again := c.listen(ln, cl, &p, he)
			if again {
				continue
			}
			c.wait(ln, cl, he, c.recheck(he.Remaining, pushed, &p.unpushed), p.signal(ln))
			continue
		}
		cl.last = err
		if isPermanent(err) {
			break
		}
		// The outcome may be unknown, so the place in the store's line, which is
		// known by the owner, cannot be used again.
		c.leavePlace(cl, &p)
		c.wait(ln, cl, err, p.backoff.next(), nil)
	}
	c.leavePlace(cl, &p)
	c.mu.Lock()
	if isPermanent(err) {
		c.publish(ln, err, 0)
	}
	c.leave(ln)
	c.unlock()
	return nil, err
}

// pursuit is what a leader needs from one attempt to the next.
type pursuit struct {
	backoff  backoff
	unpushed backoff       // spaces the looks at the store where nothing is pushed
	flight   chan struct{} // one slot for each attempt under way
	place    Place         // in the store's line
	deaf     bool          // wake-ups are not to be had
}

// signal is the channel that ends a wait early.
func (p *pursuit) signal(ln *line) <-chan struct{} {
	switch {
	case p.place != nil:
		return p.place.Turn()
	case ln.watch != nil:
		return ln.watch.C()
	}
	return nil
}

// listen sees to it that the leader is woken: by its place in the store's line or
// by a Watch. again asks for another attempt before waiting, because the key may
// have become free before the wake-ups were on.
func (c *core) listen(ln *line, cl *call, p *pursuit, held *HeldError) (pushed, again bool) {
	c.mu.Lock()
	c.publish(ln, held, forever)
	c.waiting(cl, held)
	c.unlock()
	switch {
	case p.place != nil || ln.watch != nil:
		return true, false
	case p.deaf:
		return false, false
	case c.queuer != nil:
		cl.req = cl.request()
		ctx, req := cl.ctx, cl.req // closures over cl would put every call on the heap
		place, err := guarded(c, cl, nil, nil,
			func(ctx context.Context) (Place, error) { return c.queuer.Enqueue(ctx, req) },
			func(late Place) { c.leaveLate(ctx, late) })
		if err == nil {
			p.place = place
			return true, false // its Turn says when
		}
		cl.noteUnlessAbandoned(err)
	case c.waker != nil:
		key := cl.key
		w, err := guarded(c, cl, nil, nil,
			func(ctx context.Context) (Watch, error) { return c.waker.Watch(ctx, key) },
			func(late Watch) { late.Close() })
		if err == nil {
			// Only the leader uses it, but Close and the last waiter look at it.
			c.mu.Lock()
			ln.watch = w
			c.unlock()
			return true, true
		}
		cl.noteUnlessAbandoned(err)
		p.deaf = isPermanent(err)
	default:
		p.deaf = true
	}
	return false, false
}

func (cl *call) noteUnlessAbandoned(err error) {
	if err != errAbandoned && !isPermanent(err) {
		cl.last = err
	}
}

// wait lets the leader rest until the signal, d, or the end of the call.
func (c *core) wait(ln *line, cl *call, err error, d time.Duration, signal <-chan struct{}) {
	c.mu.Lock()
	c.publish(ln, err, d)
	c.waiting(cl, err)
	c.unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-signal:
	case <-t.C:
	case <-cl.ctx.Done():
	case <-c.ctx.Done():
	}
	c.mu.Lock()
	ln.answer = answer{} // whoever comes now waits for the next one
	c.unlock()
}

const forever = time.Duration(1<<63-1) / 2

// recheck is how long to wait for a push before looking at the store again.
//
// With pushes it is a third of the holder's remaining time: a push can get lost,
// and a holder of another library sends none. Close to the end of the lease it is
// the end of the lease. Without pushes it is a growing pause, up to a second.
func (c *core) recheck(remaining time.Duration, pushed bool, unpushed *backoff) time.Duration {
	const (
		unknown = 3 * time.Second        // a holder whose end is not known
		near    = 300 * time.Millisecond // near enough to wait for the end itself
	)
	d := unknown
	switch {
	case remaining <= 0:
	case remaining <= near:
		// Past the end, since a store frees a key after its last millisecond.
		d = remaining + time.Millisecond + rand.N(2*time.Millisecond)
	default:
		d = max(remaining/3, 100*time.Millisecond)
	}
	if !pushed {
		d = min(d, unpushed.next())
	}
	return d
}

// errAbandoned: the call's context, the Locker or the attempt's bound ended before
// the backend answered.
var errAbandoned = errors.New("locker: attempt abandoned")

// attempt makes one attempt, or claims place. With a flight it is bounded in time
// and takes one of the flight's slots. It sets cl.req and cl.sent.
func (c *core) attempt(cl *call, place Place, flight chan struct{}) (g Grant, err error) {
	if place == nil {
		cl.req = cl.request()
	}
	if c.info.Local {
		cl.sent = c.stamp()
		g, err = tryOrClaim(cl.ctx, c.b, cl.req, place)
	} else {
		g, err = c.attemptRemote(cl, place, flight)
	}
	switch {
	case err == nil && g == nil:
		err = Permanent(errors.New("the backend returned neither a grant nor an error"))
	case err != nil && g != nil:
		c.undo(cl.ctx, g)
		g = nil
	}
	return g, err
}

func tryOrClaim(ctx context.Context, b Backend, req Request, place Place) (Grant, error) {
	if place != nil {
		return place.Claim(ctx)
	}
	return b.TryAcquire(ctx, req)
}

func (c *core) attemptRemote(cl *call, place Place, flight chan struct{}) (Grant, error) {
	var bound <-chan time.Time
	if flight != nil {
		select {
		case flight <- struct{}{}:
		case <-cl.ctx.Done():
			return nil, errAbandoned
		case <-c.ctx.Done():
			return nil, errAbandoned
		}
		t := time.NewTimer(max(cl.req.TTL, minAttemptBound))
		defer t.Stop()
		bound = t.C
	}
	cl.sent = c.stamp()
	ctx, req, b := cl.ctx, cl.req, c.b
	return guarded(c, cl, nil, bound, func(ctx context.Context) (Grant, error) {
		if flight != nil {
			defer func() { <-flight }()
		}
		return tryOrClaim(ctx, b, req, place)
	}, func(late Grant) { c.undo(ctx, late) })
}

// guarded runs f on a goroutine of its own, because drivers do not always come
// back when their context ends. If the call, the Locker, stop or bound ends first,
// the error is errAbandoned, and what f still returns goes to late.
func guarded[T any](c *core, cl *call, stop <-chan struct{}, bound <-chan time.Time,
	f func(context.Context) (T, error), late func(T),
) (T, error) {
	if c.info.Local {
		return f(cl.ctx)
	}
	type result struct {
		v   T
		err error
	}
	const abandoned, answered = 1, 2
	var (
		state atomic.Int32
		ch    = make(chan result, 1)
		zero  T
	)
	c.mu.Lock()
	if c.closing {
		c.unlock()
		return zero, errAbandoned
	}
	c.begin()
	c.unlock()
	ctx, cancel := context.WithCancel(cl.ctx)
	defer cancel()
	go func() {
		v, err := f(ctx)
		if state.CompareAndSwap(0, answered) {
			ch <- result{v, err}
		} else if late != nil && any(v) != nil {
			late(v)
		}
		c.mu.Lock()
		c.end()
		c.unlock()
	}()
	var r result
	select {
	case r = <-ch:
		return r.v, r.err
	case <-cl.ctx.Done():
	case <-c.ctx.Done():
	case <-stop:
	case <-bound:
	}
	if state.CompareAndSwap(0, abandoned) {
		return zero, errAbandoned
	}
	// The answer came at the same moment. It counts: a grant is handed out.
	r = <-ch
	return r.v, r.err
}

// leavePlace gives up the place in the store's line, if there is one.
func (c *core) leavePlace(cl *call, p *pursuit) {
	if p.place != nil {
		c.leaveLate(cl.ctx, p.place)
		p.place = nil
	}
}

// leaveLate gives a place up without holding up anybody.
func (c *core) leaveLate(ctx context.Context, place Place) {
	c.mu.Lock()
	c.begin()
	c.unlock()
	work := func() {
		ctx, cancel := detached(ctx)
		defer cancel()
		var b backoff
		for {
			err := place.Leave(ctx)
			if err == nil || isPermanent(err) || !sleep(ctx, b.next()) {
				break
			}
		}
		c.mu.Lock()
		c.end()
		c.unlock()
	}
	if c.info.Local {
		work()
		return
	}
	go work()
}
