package testenv

import (
	"context"
	"fmt"
	"time"
)

// until tries something until it succeeds. When ctx ends, or after readyTimeout, it
// says why the last attempt failed that was not cut short.
func until(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		// At the deadline a connect may fail before ctx is seen to have ended.
		if deadline, _ := ctx.Deadline(); last == nil || ctx.Err() == nil && time.Now().Before(deadline) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testenv: waiting for %s: %w: %w", what, context.Cause(ctx), last)
		case <-again.C:
		}
	}
}
