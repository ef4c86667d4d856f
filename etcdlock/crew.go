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

// start runs work, unless the crew has been told to go home.
func (c *crew) start(work func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.running.Go(work)
	}
	return !c.over
}

// goHome starts nothing any more, and waits until all work is done or ctx ends.
func (c *crew) goHome(ctx context.Context) error {
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
		return errors.New("etcdlock: a request has not ended")
	}
}
