package locker

import "time"

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
	g, err := c.attempt(cl, nil, 0)
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
