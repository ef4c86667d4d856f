package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ending is the state of a hold's release. Guarded by core.mu.
type ending struct {
	work    *releaseWork // the last work, if any
	answer  error        // the store's definite answer
	known   bool         // answer is there
	unknown bool         // an attempt may have freed the key without our knowing
	lateOut bool         // the one attempt after a loss was sent

	local  bool          // releaseLocal is at it
	joined chan struct{} // closed when it is done; made on demand
}

// releaseWork is one detached run of attempts to release.
type releaseWork struct {
	done  chan struct{} // closed when err is set
	err   error
	over  bool
	leads bool               // the line waits for it
	stop  context.CancelFunc // ends the attempts, which may go on when it is over
}

// Release implements Lock.
func (h *hold) Release(ctx context.Context) error {
	c := h.c
	c.mu.Lock()
	c.checkClock(h)
	switch {
	case errors.Is(h.err, ErrLost):
		err := h.err
		c.releaseLate(ctx, h)
		delete(c.orphans, h)
		c.settle()
		c.unlock()
		return err
	case h.ending.known:
		err := h.ending.answer
		c.unlock()
		return c.releaseError(h, err)
	}
	if c.info.Local {
		return c.releaseLocal(h)
	}
	w := h.ending.work
	if w == nil || w.over {
		before := w
		w = &releaseWork{done: make(chan struct{}), leads: c.giveUp(h)}
		h.ending.work = w
		leaseLeft := max(h.storeEnd()-c.now(), 0)
		c.begin()
		c.unlock()
		if before != nil {
			before.stop() // this one goes on with it
		}
		c.startRelease(ctx, h, w, leaseLeft)
	} else {
		c.unlock()
	}

	// An ended ctx counts as none: a deferred Release(ctx) has to work.
	end := ctx.Done()
	if ctx.Err() != nil {
		end = nil
	}
	select {
	case <-w.done:
		return c.releaseError(h, w.err)
	case <-end:
		select {
		case <-w.done:
			return c.releaseError(h, w.err)
		default:
			c.mu.Lock()
			last := w.err
			c.unlock()
			return c.releaseError(h, ended(ctx, nil, last))
		}
	}
}

// giveUp ends the hold by a release, if it is not ended yet: its line is led by
// the release then.
func (c *core) giveUp(h *hold) bool {
	if h.err != nil {
		return false
	}
	c.finish(h, ErrReleased)
	h.ln.holder = nil
	c.take(h.ln)
	return true
}

// releaseLocal is Release on a store in this process. It unlocks c.mu.
func (c *core) releaseLocal(h *hold) error {
	if h.ending.local {
		// Another goroutine is at it, and will not be long.
		if h.ending.joined == nil {
			h.ending.joined = make(chan struct{})
		}
		joined := h.ending.joined
		c.unlock()
		<-joined
		return h.Release(context.Background())
	}
	h.ending.local = true
	leads := c.giveUp(h)
	c.unlock()
	err := h.grant.Release(context.Background())
	c.mu.Lock()
	h.ending.local = false
	if h.ending.joined != nil {
		close(h.ending.joined)
		h.ending.joined = nil
	}
	h.answered(err)
	if h.ending.known {
		err = h.ending.answer
	}
	if leads {
		c.leave(h.ln)
	}
	err = c.releaseError(h, err)
	if c.observer != nil {
		c.emit(h.event(EventReleased, err))
	}
	c.unlock()
	return err
}

func (c *core) releaseError(h *hold, err error) error { return c.fail("release", h.req.Key, err) }

// gone reports whether the store itself said that the grant is over, so that
// nothing is left to be given back.
func (h *hold) gone() bool {
	le, ok := h.err.(*LostError)
	return ok && (le.Reason == ReasonTaken || le.Reason == ReasonSession)
}

// startRelease runs the work and sees to it that it counts as over in time. It has a
// goroutine of its own; only the first attempt is made without, if the caller cannot leave
// meanwhile and the driver comes back. The line waits for it until the store lets the key
// go by itself.
func (c *core) startRelease(ctx context.Context, h *hold, w *releaseWork, leaseLeft time.Duration) {
	apart := !c.info.Deadlines || ctx.Done() != nil
	began := c.now()
	ctx, w.stop = c.lasting(ctx, h.req.Owner)
	var leaseEnd *time.Timer
	if leaseLeft < detachedBound {
		leaseEnd = time.AfterFunc(leaseLeft, func() {
			c.mu.Lock()
			c.releaseLine(h, w)
			c.unlock()
		})
	}
	end := func() {
		w.stop()
		if leaseEnd != nil {
			leaseEnd.Stop()
		}
	}
	var err error
	if !apart {
		c.awaitRenewals(ctx, h)
		if err = c.releaseOnce(ctx, h, w); err == nil {
			end()
			return
		}
	}
	bound := time.AfterFunc(detachedBound-(c.now()-began), func() {
		c.mu.Lock()
		c.releaseOver(h, w, errNoAnswer)
		c.unlock()
	})
	go func() {
		if apart {
			c.awaitRenewals(ctx, h)
			err = c.releaseOnce(ctx, h, w)
		}
		if err != nil {
			c.releaseAgain(ctx, h, w, err)
		}
		bound.Stop()
		end()
	}()
}

// releaseOnce makes one attempt. If its answer is definite, the work is over, and the
// error is nil.
func (c *core) releaseOnce(ctx context.Context, h *hold, w *releaseWork) error {
	err := sliced(ctx, h.grant.Release)
	c.mu.Lock()
	defer c.unlock()
	h.answered(err)
	if h.ending.known {
		err = h.ending.answer
	}
	if h.ending.known || isPermanent(err) {
		c.releaseOver(h, w, err)
		c.end()
		return nil
	}
	if !w.over {
		w.err = err // for a caller that runs out of time
	}
	c.releaseLine(h, w)
	return err
}

// releaseAgain repeats the attempt, which has failed with err, until its answer is
// definite or ctx ends. That may be when w is over long since: see lasting.
func (c *core) releaseAgain(ctx context.Context, h *hold, w *releaseWork, err error) {
	var b backoff
	for err != nil {
		if !sleep(ctx, b.next()) && lostMeanwhile(ctx) == nil {
			c.mu.Lock()
			c.releaseOver(h, w, err)
			c.end()
			c.unlock()
			return
		}
		err = c.releaseOnce(ctx, h, w)
	}
}

// answered takes in the answer to one attempt.
func (h *hold) answered(err error) {
	e := &h.ending
	switch {
	case err == nil:
		e.known, e.answer = true, nil
	case errors.Is(err, ErrLost):
		e.known = true
		le := lostError(err)
		le.Key = h.req.Key
		// "Not there" after an attempt without an answer: that one did it. The end of a
		// session says nothing about what was sent before.
		if !e.unknown || le.Reason == ReasonSession {
			e.answer = le
		}
	case !isNoEffect(err):
		e.unknown = true
	}
}

// renewalGrace is how long a release waits for renewals under way. A renewal that
// comes after it does nothing in the store; it is only better that none does.
const renewalGrace = 250 * time.Millisecond

// awaitRenewals waits for the renewals under way, so that normally none of them
// reaches the store after the release.
func (c *core) awaitRenewals(ctx context.Context, h *hold) {
	c.mu.Lock()
	if h.renewal.inFlight == 0 {
		c.mu.Unlock()
		return
	}
	quiet := make(chan struct{})
	h.renewal.quiet = quiet
	slice := h.renewal.at - c.now()
	c.mu.Unlock()
	t := time.NewTimer(min(max(slice, 0), renewalGrace))
	defer t.Stop()
	select {
	case <-quiet:
	case <-t.C:
	case <-ctx.Done():
	}
}

// errNoAnswer: a release has used up its time.
var errNoAnswer = fmt.Errorf("no answer from the store in %v", detachedBound)

// releaseOver ends the work for its waiters. c.mu is held.
func (c *core) releaseOver(h *hold, w *releaseWork, err error) {
	if w.over {
		return
	}
	w.over = true
	if err == errNoAnswer {
		h.ending.unknown = true
		if w.err != nil {
			err = errors.Join(err, w.err)
		}
	}
	w.err = err
	close(w.done)
	c.releaseLine(h, w)
	if c.observer != nil {
		c.emit(h.event(EventReleased, c.releaseError(h, err)))
	}
}

// releaseLine lets the next in line try, once. c.mu is held.
func (c *core) releaseLine(h *hold, w *releaseWork) {
	if w.leads {
		w.leads = false
		c.leave(h.ln)
	}
}

// releaseLate sends, once, the attempt that follows a loss: the store may still show the
// lock, and others need not wait for its end. If it was Close that ended the lock, or if
// the store would not, the attempt is repeated, and Close tells if that did not help.
// c.mu is held.
func (c *core) releaseLate(ctx context.Context, h *hold) {
	if h.ending.lateOut || h.gone() {
		return
	}
	h.ending.lateOut = true
	_, closed := c.orphans[h]
	c.detach(ctx, h.req.Owner, func(ctx context.Context) {
		var b backoff
		for {
			err := sliced(ctx, h.grant.Release)
			if !closed && !c.info.Multiplexed {
				return
			}
			done := err == nil || errors.Is(err, ErrLost)
			c.mu.Lock()
			switch {
			case done:
				delete(c.unreturned, h)
			case closed:
				c.unreturned[h] = fmt.Errorf("key %s: %w", short(h.req.Key), err)
			}
			c.mu.Unlock()
			if done || isPermanent(err) || !sleep(ctx, b.next()) {
				return
			}
		}
	})
}
