package locker

import (
	"container/list"
	"time"
)

// line is what one Locker has to do with one key: at most one live hold, at most
// one leader, who alone talks to the store about the key, and the waiters behind
// them, in the order of their calls. It exists while there is any of the three.
// Everything in it is guarded by core.mu, except the leader's use of watch.
type line struct {
	key     string
	holder  *hold     // the live local hold, if any
	led     bool      // somebody leads: tries, waits at the store, or releases
	waiters list.List // of *waiter
	answer  answer
	changed chan struct{}    // closed at the next change; made on demand
	watch   Watch            // wake-ups for the leaders, opened by one of them
	early   map[string]error // losses pushed while somebody leads, by owner: of a grant that he does not know of yet, or of older ones
	first   hold             // the first hold's memory: one allocation for both
}

// waiter waits in a line. turn is closed when it becomes the leader.
type waiter struct {
	turn chan struct{}
	led  bool
}

// answer is the last definite answer that a leader got from the store: somebody
// has the key, or the driver's error. It serves the callers of TryAcquire, who do
// not overtake.
type answer struct {
	err   error
	at    instant
	until instant // valid until; later a new attempt is due
}

// line returns the line of key, making it if need be. A holder whose time is over
// has left it, even if the timer that says so is late.
func (c *core) line(key string) *line {
	ln := c.lines[key]
	if ln != nil && ln.holder != nil {
		c.checkClock(ln.holder)
		ln = c.lines[key]
	}
	if ln == nil {
		ln = &line{key: key}
		c.lines[key] = ln
	}
	return ln
}

// free reports whether a newcomer may lead at once.
func (ln *line) free() bool {
	return ln.holder == nil && !ln.led && ln.waiters.Len() == 0
}

// advance gives the line's lead to the next waiter, if it is to be given, and
// forgets the line when nobody is left.
func (c *core) advance(ln *line) {
	ln.signal()
	if ln.holder != nil || ln.led {
		return
	}
	if front := ln.waiters.Front(); front != nil {
		w := ln.waiters.Remove(front).(*waiter)
		w.led = true
		c.take(ln)
		close(w.turn)
		return
	}
	c.unwatch(ln)
	if c.lines[ln.key] == ln {
		delete(c.lines, ln.key)
	}
}

// take begins a lead. Close waits for its end, because what a leader gets from the
// store he may have to give back.
func (c *core) take(ln *line) {
	ln.led = true
	c.begin()
}

// leave ends the lead.
func (c *core) leave(ln *line) {
	ln.led = false
	c.advance(ln)
	c.end()
}

func (c *core) leaveNow(ln *line) {
	c.mu.Lock()
	c.leave(ln)
	c.unlock()
}

// unwatch closes the wake-ups if nobody here waits for the key.
func (c *core) unwatch(ln *line) {
	if ln.watch != nil && !ln.led && ln.waiters.Len() == 0 {
		c.later.watches = append(c.later.watches, ln.watch)
		ln.watch = nil
	}
}

// signal tells the callers of TryAcquire to look again.
func (ln *line) signal() {
	if ln.changed != nil {
		close(ln.changed)
		ln.changed = nil
	}
}

func (ln *line) change() <-chan struct{} {
	if ln.changed == nil {
		ln.changed = make(chan struct{})
	}
	return ln.changed
}

// blocked says why the line does not let a caller through at now: a *HeldError,
// the driver's error, or nil while that is not known.
func (ln *line) blocked(now instant) error {
	switch {
	case ln.holder != nil:
		return ln.holder.held(now)
	case ln.answer.err == nil || now >= ln.answer.until:
		return nil
	}
	he, ok := ln.answer.err.(*HeldError)
	if !ok {
		return ln.answer.err
	}
	aged := *he
	if aged.Remaining > 0 {
		aged.Remaining = max(aged.Remaining-(now-ln.answer.at), time.Nanosecond)
	}
	return &aged
}
