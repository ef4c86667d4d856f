package pglock

import (
	"context"
	"errors"
)

// until waits, until ctx ends, for the end of something: wait blocks that long.
func until(ctx context.Context, wait func(), what string) error {
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("pglock: " + what + " has not ended")
	}
}

// closeOwned closes the pool that open has made, if it has, and waits for it until ctx
// ends: the driver waits for connections to say goodbye to.
func closeOwned(ctx context.Context, closePool func()) error {
	if closePool == nil {
		return nil
	}
	return until(ctx, closePool, "a connection of the pool")
}
