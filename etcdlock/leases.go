package etcdlock

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/go-locker/locker"
)

// maxTTLs is how many different lifetimes the locks of a backend have at a time.
const maxTTLs = 4

var errManyTTLs = fmt.Errorf("%w: locks of more than %d different TTLs at a time, for each of which there is a lease of its own",
	locker.ErrUnsupported, maxTTLs)

// slot is what a lease is found by: a lifetime, and which of the leases that share the locks.
type slot struct {
	ttl time.Duration
	nth int
}

// opening is a lease that is being made, or has been.
type opening struct {
	done chan struct{} // closed when one of the others is set
	l    *lease
	err  error
}

// lease returns the lease for a key's lock, refreshed not long ago, and makes it if need be.
// Its making goes on if ctx ends: others may wait for it. No error has had any effect on
// the key.
func (b *backend) lease(ctx context.Context, ttl time.Duration, key string) (*lease, error) {
	at := slot{ttl, int(maphash.String(b.seed, key) % uint64(b.spread))}
	for {
		b.mu.Lock()
		o, err := b.at(at)
		b.mu.Unlock()
		if err != nil {
			return nil, locker.Permanent(err)
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, locker.NoEffect(ctx.Err())
		}
		if o.err != nil {
			return nil, locker.NoEffect(o.err)
		}
		switch err := o.l.fresh(ctx); {
		case err == nil:
			return o.l, nil
		case o.l.ended() == nil:
			return nil, locker.NoEffect(err)
		}
	}
}

// at is the lease in a slot, or the making of it. b.mu is held.
func (b *backend) at(at slot) (*opening, error) {
	if b.closed {
		return nil, locker.ErrClosed
	}
	if o := b.leases[at]; o != nil {
		return o, nil
	}
	if err := b.makeRoom(at.ttl); err != nil {
		return nil, err
	}
	o := &opening{done: make(chan struct{})}
	b.leases[at] = o
	b.crew.start(func() { b.make(at, o) })
	return o, nil
}

// makeRoom sees to it that there may be a lease for another lifetime. b.mu is held.
func (b *backend) makeRoom(ttl time.Duration) error {
	busy := map[time.Duration]bool{ttl: true}
	for at, o := range b.leases {
		busy[at.ttl] = busy[at.ttl] || o.l == nil || o.l.busy()
	}
	for other, used := range busy {
		if len(busy) <= maxTTLs || used {
			continue
		}
		delete(busy, other)
		for at, o := range b.leases {
			if at.ttl == other {
				delete(b.leases, at)
				b.crew.start(o.l.resign)
			}
		}
	}
	if len(busy) > maxTTLs {
		return errManyTTLs
	}
	return nil
}

// make makes a lease for a slot.
func (b *backend) make(at slot, o *opening) {
	l, err := b.newLease(b.ctx, at.ttl)
	b.mu.Lock()
	defer b.mu.Unlock()
	defer close(o.done)
	if o.l, o.err = l, err; err != nil || l.ended() != nil {
		delete(b.leases, at)
	}
}

// admit counts a lease for Close, unless that is over.
func (b *backend) admit(l *lease) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.all[l] = struct{}{}
	}
	return !b.closed
}

func (b *backend) leave(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, l)
}

// forget takes a lease out of its slot.
func (b *backend) forget(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, o := range b.leases {
		if o.l == l {
			delete(b.leases, at)
		}
	}
}
