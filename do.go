package locker

import (
	"context"
	"errors"
)

// Do runs fn under the lock on key: it waits for the lock as Acquire does, and
// releases it when fn returns, panics or calls runtime.Goexit. fn's context ends
// when the lock is lost, with Lock.Err as its cause, and when ctx ends.
//
// The error joins fn's error, first, with the release's: an error that matches
// ErrLost means that fn may not have been alone until its end.
func Do(ctx context.Context, l Locker, key string, fn func(ctx context.Context, k Lock) error, opts ...Option) error {
	k, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return runUnder(ctx, k, fn)
}

// TryDo is Do without waiting. If the key is held, or on any other error before
// fn, ran is false and the error says why: a *HeldError, who is running it
// already. If ran is true, the error is Do's.
func TryDo(ctx context.Context, l Locker, key string, fn func(ctx context.Context, k Lock) error, opts ...Option) (ran bool, err error) {
	k, err := l.TryAcquire(ctx, key, opts...)
	if err != nil {
		return false, err
	}
	return true, runUnder(ctx, k, fn)
}

func runUnder(ctx context.Context, k Lock, fn func(context.Context, Lock) error) (err error) {
	lctx, cancel := WithLock(ctx, k)
	// Deferred, so that a panic or Goexit in fn releases too and goes on.
	defer func() {
		cancel()
		err = errors.Join(err, k.Release(ctx))
	}()
	return fn(lctx, k)
}

// WithLock returns a context that ends when parent does, when the lock does, or
// when cancel is called. If the lock ended it, its cause is k.Err: ErrReleased
// or ErrLost with the reason. Calling cancel frees what it needs and does not
// release the lock.
func WithLock(parent context.Context, k Lock) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	select {
	case <-k.Done():
		cancel(k.Err())
		return ctx, func() {}
	default:
	}
	go func() {
		select {
		case <-k.Done():
			cancel(k.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
