package memlock_test

import (
	"context"
	"sync"
	"testing"

	"github.com/go-locker/locker/memlock"
)

// keyed is the floor: a mutex per key in a map, without TTL, owner, token or ctx.
type keyed struct {
	mu sync.Mutex
	m  map[string]*counted
}

type counted struct {
	sync.Mutex
	n int
}

func (k *keyed) lock(key string) {
	k.mu.Lock()
	c := k.m[key]
	if c == nil {
		c = new(counted)
		k.m[key] = c
	}
	c.n++
	k.mu.Unlock()
	c.Lock()
}

func (k *keyed) unlock(key string) {
	k.mu.Lock()
	c := k.m[key]
	if c.n--; c.n == 0 {
		delete(k.m, key)
	}
	k.mu.Unlock()
	c.Unlock()
}

func BenchmarkW1Cycle(b *testing.B) {
	b.Run("mutex-map", func(b *testing.B) {
		k := &keyed{m: make(map[string]*counted)}
		b.ReportAllocs()
		for b.Loop() {
			k.lock("report")
			k.unlock("report")
		}
	})
	b.Run("memlock", func(b *testing.B) {
		l, err := memlock.New(nil, nil)
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			k, err := l.Acquire(ctx, "report")
			if err != nil {
				b.Fatal(err)
			}
			if err := k.Release(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}
