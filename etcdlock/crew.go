package etcdlock

import (
	"context"
	"errors"
	"sync"
)

// crew is the goroutines of a backend. The zero value is ready.
type crew struct {
	mu      sync.Mutex
	over    bool
	running sync.WaitGroup
}

// start runs work, unless it was closed.
func (c *crew) start(work func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.running.Go(work)
	}
	return !c.over
}

// close starts nothing any more, and waits until all work is done or ctx ends.
func (c *crew) close(ctx context.Context) error {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("etcdlock: requests, or the ends of leases, have no answer yet: a lock that they leave ends with its TTL")
	}
}
