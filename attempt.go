package locker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// errTooLate is what an Acquire tried again after: it is not lost, since it was
// never handed out.
var errTooLate = errors.New("locker: the grant came after its own lease was over")

// errAbandoned: the call's context, the Locker or the attempt's bound ended before
// the backend answered.
var errAbandoned = errors.New("locker: attempt abandoned")

// attempt makes one attempt, or claims place. bound ends it early; 0 does not. It
// sets cl.req and cl.sent. A refusal is a bare *HeldError; an error that the end of
// the call's context has caused is errAbandoned.
func (c *core) attempt(cl *call, place Place, bound time.Duration) (g Grant, err error) {
	if place == nil {
		cl.req = cl.request()
	}
	cl.sent = c.stamp()
	ctx, req, b := cl.ctx, cl.req, c.b // closures over cl would put every call on the heap
	if c.info.Local {
		g, err = tryOrClaim(ctx, b, req, place)
	} else {
		g, err = guarded(ctx, c, nil, bound,
			func(ctx context.Context) (Grant, error) {
				g, err := tryOrClaim(ctx, b, req, place)
				if place != nil && ctx.Err() != nil {
					// Abandoned: the place was left before this Claim put it back in line.
					c.leaveLate(ctx, req.Owner, place)
				}
				return g, err
			},
			func(late Grant) { c.undo(ctx, req.Owner, late) })
	}
	if err == nil {
		if g == nil {
			err = Permanent(errors.New("the backend returned neither a grant nor an error"))
		}
		return g, err
	}
	if g != nil {
		c.undo(cl.ctx, req.Owner, g)
	}
	switch he, held := errors.AsType[*HeldError](err); {
	case held:
		err = &HeldError{Key: cl.key, Holder: he.Holder, Remaining: he.Remaining}
	case err != errAbandoned && cl.over():
		cl.note(err)
		err = errAbandoned
	}
	return nil, err
}

func tryOrClaim(ctx context.Context, b Backend, req Request, place Place) (Grant, error) {
	if place != nil {
		return place.Claim(ctx)
	}
	return b.TryAcquire(ctx, req)
}

// guarded runs f so that it can be left behind, because drivers do not always come
// back when their context ends. If parent, the Locker, stop or bound (0: none) ends
// first, the error is errAbandoned, and what f still returns goes to late.
func guarded[T any](parent context.Context, c *core, stop <-chan struct{}, bound time.Duration,
	f func(context.Context) (T, error), late func(T),
) (T, error) {
	if c.info.Local {
		return f(parent)
	}
	c.mu.Lock()
	if c.closing {
		c.unlock()
		var zero T
		return zero, errAbandoned
	}
	c.begin()
	c.unlock()
	if c.info.Deadlines && parent.Done() == nil && stop == nil {
		defer c.endNow()
		if bound == 0 {
			return f(parent)
		}
		ctx, cancel := context.WithTimeout(parent, bound)
		defer cancel()
		return f(ctx)
	}
	return guardedApart(parent, c, stop, bound, f, late)
}

// guardedApart is guarded on a goroutine of its own.
func guardedApart[T any](parent context.Context, c *core, stop <-chan struct{}, bound time.Duration,
	f func(context.Context) (T, error), late func(T),
) (T, error) {
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
	var end <-chan time.Time
	if bound > 0 {
		t := time.NewTimer(bound)
		defer t.Stop()
		end = t.C
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	go func() {
		v, err := f(ctx)
		if state.CompareAndSwap(0, answered) {
			ch <- result{v, err}
		} else if late != nil && any(v) != nil {
			late(v)
		}
		c.endNow()
	}()
	var r result
	select {
	case r = <-ch:
		return r.v, r.err
	case <-parent.Done():
	case <-c.ctx.Done():
	case <-stop:
	case <-end:
	}
	if state.CompareAndSwap(0, abandoned) {
		return zero, errAbandoned
	}
	// The answer came at the same moment. It counts: a grant is handed out.
	r = <-ch
	return r.v, r.err
}
