package locker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// Close implements Locker.
func (c *core) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.unlock()
		select {
		case <-c.closed:
		case <-ctx.Done():
			select {
			case <-c.closed:
			default:
				return c.fail("close", "", ended(ctx, nil, nil))
			}
		}
		return c.closeErr
	}
	c.closing = true
	c.returned, c.settled = make(chan struct{}), make(chan struct{})
	var last time.Duration // until the last lease is over
	for len(c.plan) > 0 {
		h := c.plan[0]
		last = max(last, h.storeEnd()-c.now())
		c.lose(h, &LostError{Reason: ReasonClosed})
		c.orphans[h] = struct{}{}
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.cancel() // ends waits and attempts; each of them leaves its line by itself
	c.awaitLastWarnings(ctx)
	c.settle()
	c.unlock()

	// Their holders release them now. One who does not is waited for until the store
	// has let go of his key, and no longer.
	leases := time.NewTimer(last)
	defer leases.Stop()
	select {
	case <-c.returned:
	case <-leases.C:
	case <-ctx.Done():
	}
	err := c.releaseRest(ctx)
	if c.closer != nil {
		ctx, cancel := detached(ctx)
		err = errors.Join(err, c.closer.Close(ctx))
		cancel()
	}
	c.closeErr = c.fail("close", "", err)
	close(c.closed)
	return c.closeErr
}

// releaseRest gives back what the holders did not, and waits for all work under
// way, within the bound of detached work.
func (c *core) releaseRest(ctx context.Context) error {
	c.mu.Lock()
	rest := slices.Collect(maps.Keys(c.orphans))
	c.unlock()
	for _, h := range rest {
		_ = h.Release(ctx) // ErrLost, and the attempt goes out
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	defer c.stopWork()
	var late error
	select {
	case <-c.settled:
	case <-ctx.Done():
		late = errors.New("requests that would give locks back have no answer yet")
	}
	c.mu.Lock()
	defer c.unlock()
	return errors.Join(append(slices.Collect(maps.Values(c.unreturned)), late)...)
}

// settle tells Close when nothing is left to wait for. c.mu is held.
func (c *core) settle() {
	if !c.closing || len(c.orphans) > 0 {
		return
	}
	closeOnce(c.returned)
	if c.pending == 0 {
		closeOnce(c.settled)
	}
}

func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}
