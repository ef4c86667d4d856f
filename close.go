package locker

import (
	"context"
	"errors"
	"fmt"
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
				return c.fail("close", "", (&call{ctx: ctx}).ended())
			}
		}
		return c.closeErr
	}
	c.closing = true
	c.settled = make(chan struct{})
	for len(c.plan) > 0 {
		h := c.plan[0]
		c.lose(h, &LostError{Reason: ReasonClosed})
		c.orphans[h] = struct{}{}
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	settled := c.settled
	c.settle()
	c.unlock()
	c.cancel() // ends waits and attempts; each of them leaves its line by itself

	// Their holders release them now.
	select {
	case <-settled:
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
	rest := make([]*hold, 0, len(c.orphans))
	for h := range c.orphans {
		rest = append(rest, h)
	}
	settled := c.settled
	c.unlock()
	for _, h := range rest {
		_ = h.Release(ctx) // ErrLost, and the attempt goes out
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.unlock()
	return fmt.Errorf("%d requests to give locks back have no answer yet; their TTL will end them", c.pending)
}

// settle tells Close when nothing is left to wait for. c.mu is held.
func (c *core) settle() {
	if c.settled != nil && c.pending == 0 && len(c.orphans) == 0 {
		select {
		case <-c.settled:
		default:
			close(c.settled)
		}
	}
}
