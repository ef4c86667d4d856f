package redislock

import (
	"context"
	"errors"

	"github.com/go-locker/locker"
)

// Inspect implements locker.Inspector. Redis does not show the token.
func (b *backend) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	reply, err := b.run(ctx, inspectScript, []string{b.lock(key)})
	return b.shown(reply, err)
}

// shown reads what inspect.lua came to.
func (b *backend) shown(reply any, err error) (locker.Holding, error) {
	if err != nil {
		return locker.Holding{}, b.failed(err)
	}
	if reply == int64(0) {
		return locker.Holding{}, nil
	}
	holder, remaining, ok := holding(reply)
	if !ok {
		return locker.Holding{}, unexpected(reply)
	}
	return locker.Holding{Holder: holder, Remaining: remaining}, nil
}

// ForceRelease implements locker.Inspector.
func (b *backend) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	g := &grant{b: b, key: key, name: b.lock(key), holder: holder}
	err := g.Release(ctx)
	if errors.Is(err, locker.ErrLost) {
		return false, nil
	}
	return err == nil, err
}
