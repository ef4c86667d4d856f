package locker

import (
	"context"
	"math/rand/v2"
	"time"
)

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
			if err == ErrClosed {
				break
			}
			cl.held, err = nil, errTooLate // a definite answer, and not "held"
		}
		if err == errAbandoned {
			// By ctx or Close: the loop's head says so. By the bound: try again, but
			// not in the place whose owner the abandoned claim still carries.
			c.leavePlace(cl, &p)
			continue
		}
		if he, ok := err.(*HeldError); ok {
			cl.held = he
			p.backoff.reset()
			pushed, again := c.listen(ln, cl, &p, he)
			if again {
				continue
			}
			c.wait(ln, cl, he, p.recheck(he.Remaining, pushed), p.signal(ln))
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
	near     bool          // the last look was timed for the end of the lease
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
