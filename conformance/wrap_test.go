package conformance_test

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// wrapped is a Locker whose methods can be replaced.
type wrapped struct {
	locker.Locker
	acquire, try func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error)
	close        func(ctx context.Context) error
	lacks        locker.Capability // is not declared
}

func (w wrapped) Acquire(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
	if w.acquire != nil {
		return w.acquire(ctx, key, opts...)
	}
	return w.Locker.Acquire(ctx, key, opts...)
}

func (w wrapped) TryAcquire(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
	if w.try != nil {
		return w.try(ctx, key, opts...)
	}
	return w.Locker.TryAcquire(ctx, key, opts...)
}

func (w wrapped) Close(ctx context.Context) error {
	if w.close != nil {
		return w.close(ctx)
	}
	return w.Locker.Close(ctx)
}

func (w wrapped) Info() locker.Info {
	info := w.Locker.(interface{ Info() locker.Info }).Info()
	info.Can &^= w.lacks
	return info
}

func (w wrapped) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	return w.Locker.(locker.Inspector).Inspect(ctx, key)
}

func (w wrapped) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	return w.Locker.(locker.Inspector).ForceRelease(ctx, key, holder)
}

func (w wrapped) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	return w.Locker.(locker.Inspector).List(ctx, yield)
}

// lockers makes a hook for world.locker.
func lockers(wrap func(l locker.Locker, n int) wrapped) func(locker.Locker, int) locker.Locker {
	return func(l locker.Locker, n int) locker.Locker { return wrap(l, n) }
}

// acquiring is an Acquire or TryAcquire with its key and options.
type acquiring func(context.Context) (locker.Lock, error)

// acquires replaces both ways of acquiring.
func acquires(f func(ctx context.Context, do acquiring) (locker.Lock, error)) func(*world) {
	return func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			return wrapped{Locker: l,
				acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					return f(ctx, func(ctx context.Context) (locker.Lock, error) { return l.Acquire(ctx, key, opts...) })
				},
				try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
					return f(ctx, func(ctx context.Context) (locker.Lock, error) { return l.TryAcquire(ctx, key, opts...) })
				},
			}
		})
	}
}

// errorsOf replaces the errors of both ways of acquiring.
func errorsOf(f func(context.Context, error) error) func(*world) {
	return acquires(func(ctx context.Context, do acquiring) (locker.Lock, error) {
		k, err := do(ctx)
		if err != nil {
			err = f(ctx, err)
		}
		return k, err
	})
}

// lock is a Lock whose methods can be replaced.
type lock struct {
	locker.Lock
	key, owner string
	done       <-chan struct{}
	err        func() error
	deadline   func() time.Time
	extend     func(context.Context, time.Duration) error
	release    func(context.Context) error
}

func (k *lock) Key() string   { return cmp.Or(k.key, k.Lock.Key()) }
func (k *lock) Owner() string { return cmp.Or(k.owner, k.Lock.Owner()) }

func (k *lock) Done() <-chan struct{} {
	if k.done != nil {
		return k.done
	}
	return k.Lock.Done()
}

func (k *lock) Err() error {
	if k.err != nil {
		return k.err()
	}
	return k.Lock.Err()
}

func (k *lock) Deadline() time.Time {
	if k.deadline != nil {
		return k.deadline()
	}
	return k.Lock.Deadline()
}

func (k *lock) Extend(ctx context.Context, ttl time.Duration) error {
	if k.extend != nil {
		return k.extend(ctx, ttl)
	}
	return k.Lock.Extend(ctx, ttl)
}

func (k *lock) Release(ctx context.Context) error {
	if k.release != nil {
		return k.release(ctx)
	}
	return k.Lock.Release(ctx)
}

// locks replaces every Lock of a Locker.
func locks(wrap func(locker.Lock, locker.Locker) locker.Lock) func(locker.Locker, int) locker.Locker {
	return lockers(func(l locker.Locker, _ int) wrapped {
		return wrapped{Locker: l,
			acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				k, err := l.Acquire(ctx, key, opts...)
				if err != nil {
					return nil, err
				}
				return wrap(k, l), nil
			},
			try: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
				k, err := l.TryAcquire(ctx, key, opts...)
				if err != nil {
					return nil, err
				}
				return wrap(k, l), nil
			},
		}
	})
}

// ofLocks is locks where the Locker does not matter.
func ofLocks(wrap func(locker.Lock) *lock) func(*world) {
	return func(w *world) {
		w.locker = locks(func(k locker.Lock, _ locker.Locker) locker.Lock { return wrap(k) })
	}
}

// tick is a step of time that meets none of those that the cases take.
const tick = 313 * time.Microsecond

// polling waits by asking again and again.
func polling(l locker.Locker, every time.Duration) locker.Locker {
	return wrapped{Locker: l, acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
		for {
			k, err := l.TryAcquire(ctx, key, opts...)
			if !errors.Is(err, locker.ErrHeld) {
				return k, err
			}
			select {
			case <-ctx.Done():
				return nil, errors.Join(ctx.Err(), context.Cause(ctx), err)
			case <-time.After(every):
			}
		}
	}}
}

// lastFirst serves its own waiters in the wrong order.
func lastFirst(l locker.Locker) locker.Locker {
	var mu sync.Mutex
	stacks := make(map[string][]*int)
	return wrapped{Locker: l, acquire: func(ctx context.Context, key string, opts ...locker.Option) (locker.Lock, error) {
		me := new(int)
		mu.Lock()
		stacks[key] = append(stacks[key], me)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			for i, w := range stacks[key] {
				if w == me {
					stacks[key] = append(stacks[key][:i:i], stacks[key][i+1:]...)
				}
			}
		}()
		for {
			mu.Lock()
			last := stacks[key][len(stacks[key])-1] == me
			mu.Unlock()
			if last {
				if k, err := l.TryAcquire(ctx, key, opts...); !errors.Is(err, locker.ErrHeld) {
					return k, err
				}
			}
			select {
			case <-ctx.Done():
				return nil, errors.Join(ctx.Err(), context.Cause(ctx), locker.ErrHeld)
			case <-time.After(tick):
			}
		}
	}}
}
