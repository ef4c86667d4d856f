package memlock

import (
	"container/list"
	"context"
	"time"

	"github.com/go-locker/locker"
)

// place is a waiter's place in the line of a key.
type place struct {
	b    *backend
	req  locker.Request
	turn chan struct{}
	elem *list.Element // nil: not in the line, because the turn lapsed or it left
	e    *entry        // where elem stands
}

func (p *place) signal() {
	select {
	case p.turn <- struct{}{}:
	default:
	}
}

func (e *entry) add(p *place) {
	p.e, p.elem = e, e.queue.PushBack(p)
}

func (e *entry) remove(p *place) {
	e.queue.Remove(p.elem)
	p.e, p.elem = nil, nil
	if e.reserved == p {
		e.reserved = nil
	}
}

// Enqueue implements locker.Queuer.
func (b *backend) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	if err := check(ctx, req); err != nil {
		return nil, err
	}
	p := &place{b: b, req: req, turn: make(chan struct{}, 1)}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	e := b.s.entry(req.Key)
	e.add(p)
	b.s.settle(e, b.s.now())
	b.s.setTimer(e)
	return p, nil
}

// Turn implements locker.Place.
func (p *place) Turn() <-chan struct{} { return p.turn }

// Claim implements locker.Place.
func (p *place) Claim(ctx context.Context) (locker.Grant, error) {
	if err := check(ctx, p.req); err != nil {
		return nil, err
	}
	s := p.b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(p.req.Key)
	switch {
	case e.reserved == p:
		e.remove(p)
		return s.take(e, p.req, p.b.report), nil
	case p.elem == nil && e.isFree():
		return s.take(e, p.req, p.b.report), nil
	case p.elem == nil:
		// The reservation lapsed before this call: to the end of the line.
		e.add(p)
		s.setTimer(e)
	}
	return nil, e.held(s.now())
}

// Leave implements locker.Place.
func (p *place) Leave(context.Context) error {
	s := p.b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.elem != nil {
		e := p.e
		e.remove(p)
		s.settle(e, s.now())
	}
	return nil
}

// isFree reports whether anybody may take the key. The entry has been settled.
func (e *entry) isFree() bool { return e.owner == "" && e.reserved == nil }

// held describes who has the key, or for whom it is kept.
func (e *entry) held(now instant) *locker.HeldError {
	shown := locker.Request{Owner: e.owner, Label: e.label}
	if e.reserved != nil {
		shown = e.reserved.req
	}
	return &locker.HeldError{Key: e.key, Holder: shown.Holder(), Remaining: max(e.ends-now, time.Nanosecond)}
}
