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

// attempt makes one attempt, or claims place. With a flight it is bounded in time
// and takes one of the flight's slots. It sets cl.req and cl.sent. A refusal is a
// bare *HeldError.
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
	if err == nil {
		if g == nil {
			err = Permanent(errors.New("the backend returned neither a grant nor an error"))
		}
		return g, err
	}
	if g != nil {
		c.undo(cl.ctx, g)
	}
	if he := (*HeldError)(nil); errors.As(err, &he) {
		err = &HeldError{Key: cl.key, Holder: he.Holder, Remaining: he.Remaining}
	}
	return nil, err
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
