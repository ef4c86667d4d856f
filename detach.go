package locker

import (
	"context"
	"errors"
	"time"
)

// detachedBound bounds work that runs on after its caller left: a release, the undo
// of an attempt.
const detachedBound = 5 * time.Second

// detachedSlice bounds the first attempt of such work: a connection that is dead, unknown
// to its client, must not use up the time of the attempts on others.
const detachedSlice = detachedBound / 4

// sliced makes one attempt of detached work, whose context is detached's or lasting's. An
// attempt that is not the first of bounded work has more time, half of the bound: a store
// that is merely slow is heard. A driver that does not heed deadlines ends an attempt by a
// time-out of its own. If the loss of the grant has ended ctx, the error is that loss.
func sliced(ctx context.Context, attempt func(context.Context) error) error {
	slice := detachedSlice
	if end, ok := ctx.Deadline(); !ok || detachedBound-time.Until(end) >= detachedSlice {
		slice *= 2
	}
	bounded, cancel := context.WithTimeout(ctx, slice)
	defer cancel()
	err := attempt(bounded)
	if lost := lostMeanwhile(ctx); err != nil && lost != nil {
		return lost
	}
	return err
}

// later collects what the code under c.mu wants done without it.
type later struct {
	events  []Event
	watches []Watch
	work    []func()
}

func (c *core) emit(e Event) {
	if c.observer != nil {
		c.later.events = append(c.later.events, e)
	}
}

// unlock unlocks c.mu and does what was put off.
func (c *core) unlock() {
	c.do(c.unlockFirst())
}

// unlockFirst unlocks c.mu and leaves the rest to its caller. Nothing stays behind:
// one goroutine's observer is not called on another one.
func (c *core) unlockFirst() later {
	l := c.later
	c.later = later{}
	c.mu.Unlock()
	return l
}

func (c *core) do(l later) {
	for _, w := range l.watches {
		w.Close()
	}
	for _, do := range l.work {
		do()
	}
	c.notify(l.events...)
}

// begin and end frame detached work, so that Close can wait for it. c.mu is held.
func (c *core) begin() { c.pending++ }

func (c *core) end() {
	c.pending--
	c.settle()
}

func (c *core) endNow() {
	c.mu.Lock()
	c.end()
	c.unlock()
}

// detached makes the context of work that outlives its caller: the values stay,
// the end is its own.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), detachedBound)
}

// owed is a grant that is being given back.
type owed struct{ lost context.CancelCauseFunc }

// lasting makes the context of work that gives back what owner's request has, or may
// have, in the store. It is detached's where the store ends that by itself in the end.
// Where it does not, it lasts until the session is reported lost, or Close has no more
// time.
func (c *core) lasting(ctx context.Context, owner string) (context.Context, context.CancelFunc) {
	if !c.info.Multiplexed || c.work.Err() != nil {
		return detached(ctx)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(c.work, func() { cancel(context.Canceled) })
	me := &owed{cancel}
	c.mu.Lock()
	c.owing[owner] = me
	c.mu.Unlock()
	return ctx, func() {
		unhook()
		cancel(context.Canceled)
		c.mu.Lock()
		if c.owing[owner] == me {
			delete(c.owing, owner)
		}
		c.mu.Unlock()
	}
}

// lostMeanwhile is the loss that has ended a context of lasting, if one has.
func lostMeanwhile(ctx context.Context) error {
	if lost, ok := context.Cause(ctx).(*LostError); ok {
		return lost
	}
	return nil
}

// detach runs work that outlives its caller, for owner's request, as long as lasting
// says, and counted for Close. On a store in this process it is done when c.mu is free,
// else on a goroutine. c.mu is held.
func (c *core) detach(ctx context.Context, owner string, work func(context.Context)) {
	c.begin()
	run := func() {
		ctx, cancel := c.lasting(ctx, owner)
		defer cancel()
		work(ctx)
		c.endNow()
	}
	if c.info.Local {
		c.later.work = append(c.later.work, run)
	} else {
		go run()
	}
}

// undo gives back owner's grant, which nobody holds: its outcome was unknown, or it
// came too late. The work is detached, and the TTL is the last resort.
func (c *core) undo(ctx context.Context, owner string, g Grant) {
	c.mu.Lock()
	defer c.unlock()
	c.detach(ctx, owner, func(ctx context.Context) { c.undoNow(ctx, g) })
}

func (c *core) undoNow(ctx context.Context, g Grant) {
	// "Not there" may mean "not there yet": on its own connection the undo can
	// overtake the request that it undoes. Ask again before believing it.
	unseen := []time.Duration{250 * time.Millisecond, time.Second}
	if c.info.Local {
		unseen = nil
	}
	var b backoff
	for {
		err := sliced(ctx, g.Release)
		var pause time.Duration
		switch {
		case err == nil, isPermanent(err):
			return
		case errors.Is(err, ErrLost):
			if len(unseen) == 0 {
				return
			}
			pause, unseen = unseen[0], unseen[1:]
		default:
			pause = b.next()
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// sleep waits for d and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
