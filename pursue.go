package locker

import (
	"context"
	"math/rand/v2"
	"time"
)

// pursue is the leader's work for an Acquire: try, wait, try again. It gives up
// the lead in every case: to the hold, or to the next in line.
func (c *core) pursue(ln *line, cl *call) (*hold, error) {
	var p pursuit
	leads := true
	defer func() {
		if leads { // it ends without the lock, or the backend panicked
			c.leavePlace(cl, &p)
			c.leaveNow(ln)
		}
	}()
	for {
		if cl.ctx.Err() != nil || c.ctx.Err() != nil {
			return nil, c.over(cl)
		}
		grant, err := c.attempt(cl, p.place, attemptBound)
		if err == nil {
			var h *hold
			if h, err = c.adopt(ln, cl, grant); err == nil {
				leads = false
				c.leavePlace(cl, &p)
				return h, nil
			}
			if err == ErrClosed {
				return nil, err
			}
			cl.held, err = nil, errTooLate // a definite answer, and not "held"
		}
		if err == errAbandoned {
			// By ctx or Close: the loop's head says so. By the bound: try again, but
			// not in the place whose owner the abandoned claim still carries.
			c.leavePlace(cl, &p)
			continue
		}
		cl.note(err)
		if he, held := err.(*HeldError); held {
			p.backoff.reset()
			pushed, again := c.listen(ln, cl, &p, he)
			if !again {
				c.wait(ln, cl, he, p.recheck(he.Remaining, pushed), p.signal(ln))
			}
			continue
		}
		if isPermanent(err) {
			c.mu.Lock()
			c.publish(ln, err, 0)
			c.unlock()
			return nil, err
		}
		// The outcome may be unknown, so the place in the store's line, which is
		// known by the owner, cannot be used again.
		c.leavePlace(cl, &p)
		c.wait(ln, cl, err, p.backoff.next(), nil)
	}
}

// attemptBound is how long a waiting Acquire gives one attempt before it abandons it
// and makes another one: a driver without time-outs of its own does not turn a
// connection that went silent into a wait for ever.
const attemptBound = 5 * time.Second

// pursuit is what a leader needs from one attempt to the next.
type pursuit struct {
	backoff   backoff
	unpushed  backoff // spaces the looks at the store where nothing is pushed
	near      bool    // the last look was timed for the end of the lease
	place     Place   // in the store's line
	noWakeUps bool    // they are not to be had
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
//
// The store may have push and not answer: it is asked for no longer than the
// holder has left, since the key may become free meanwhile.
func (c *core) listen(ln *line, cl *call, p *pursuit, held *HeldError) (pushed, again bool) {
	const shortest, longest = 50 * time.Millisecond, time.Second
	patience := longest
	if held.Remaining > 0 {
		patience = min(max(held.Remaining, shortest), longest)
	}
	c.mu.Lock()
	c.publish(ln, held, patience)
	c.waiting(cl, held)
	c.unlock()
	if p.place != nil || ln.watch != nil {
		return true, false
	}
	if p.noWakeUps || c.queuer == nil && c.waker == nil {
		return false, false
	}
	ctx := cl.ctx // closures over cl would put every call on the heap
	var err error
	if c.queuer != nil {
		cl.req = cl.request()
		req := cl.req
		p.place, err = guarded(ctx, c, nil, patience,
			func(ctx context.Context) (Place, error) { return c.queuer.Enqueue(ctx, req) },
			func(late Place) { c.leaveLate(ctx, req.Owner, late) })
		if err != nil {
			p.place = nil
		}
		pushed = p.place != nil // its Turn says when
	} else {
		var w Watch
		key := cl.key
		w, err = guarded(ctx, c, nil, patience,
			func(ctx context.Context) (Watch, error) { return c.waker.Watch(ctx, key) },
			func(late Watch) { late.Close() })
		if pushed = w != nil; pushed {
			// Only the leader uses it, but whoever leaves the line last closes it.
			c.mu.Lock()
			ln.watch = w
			ln.answer.until = 0
			c.unlock()
			return true, true
		}
	}
	switch {
	case pushed, err == errAbandoned:
	case err == nil, isPermanent(err):
		p.noWakeUps = true // it will not get better
	default:
		cl.note(err)
	}
	return pushed, false
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
	ln.answer.until = 0 // whoever comes now waits for the next one
	c.unlock()
}

// recheck is how long to wait for a push before looking at the store again.
//
// With pushes it is a third of the holder's remaining time: a push can get lost,
// and a holder of another library sends none. Close to the end of the lease it is
// the end of the lease. Without pushes it is a growing pause, up to a second.
func (p *pursuit) recheck(remaining time.Duration, pushed bool) time.Duration {
	const (
		unknown = 3 * time.Second        // a holder whose end is not known
		near    = 300 * time.Millisecond // near enough to wait for the end itself
		often   = 50 * time.Millisecond  // for a short lease that is renewed again and again
	)
	d := unknown
	again := p.near
	p.near = remaining > 0 && remaining <= near
	switch {
	case p.near:
		// Past the end, since a store frees a key after its last millisecond.
		d = remaining + time.Millisecond + rand.N(2*time.Millisecond)
		if again {
			d = max(d, often)
		}
	case remaining > 0:
		d = max(remaining/3, 100*time.Millisecond)
	}
	if !pushed {
		d = min(d, p.unpushed.next())
	}
	return d
}

// leavePlace gives up the place in the store's line, if there is one.
func (c *core) leavePlace(cl *call, p *pursuit) {
	if p.place != nil {
		c.leaveLate(cl.ctx, cl.req.Owner, p.place)
		p.place = nil
	}
}

// leaveLate gives a place up without holding up anybody.
func (c *core) leaveLate(ctx context.Context, owner string, place Place) {
	c.mu.Lock()
	defer c.unlock()
	c.detach(ctx, owner, func(ctx context.Context) {
		var b backoff
		for {
			err := sliced(ctx, place.Leave)
			if err == nil || isPermanent(err) || !sleep(ctx, b.next()) {
				return
			}
		}
	})
}
