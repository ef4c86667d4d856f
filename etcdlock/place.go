package etcdlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
)

// place implements locker.Place by an entry behind others. It is the lock when those have
// gone: its token was minted when it got in line, and it lives as long as its lease.
type place struct {
	b    *backend
	req  locker.Request
	turn chan struct{}

	called atomic.Bool // the turn may have come since the last look

	mu            sync.Mutex
	e             *entry
	claimed, left bool
	waits         context.CancelFunc // ends the wait for the entry ahead
	looked        time.Time          // when the store last said that it is not its turn
	held          locker.HeldError   // and who was first
}

// Enqueue implements locker.Queuer. A place whose request had no answer is a place too: its
// Claim finds out.
func (b *backend) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	p := &place{b: b, req: req, turn: make(chan struct{}, 1)}
	if err := p.line(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// line puts the entry at the end of the line, also anew.
func (p *place) line(ctx context.Context) error {
	for {
		l, err := p.b.lease(ctx, p.req.TTL, p.req.Key)
		if err != nil {
			return err
		}
		e := p.b.entry(l, p.req, p)
		if l.add(e) != nil {
			continue
		}
		if !p.enter(e) {
			l.remove(e)
			return locker.NoEffect(errLeft)
		}
		answer, err := send(ctx, &p.b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return p.b.client.Txn(ctx).
				If(clientv3.Compare(clientv3.CreateRevision(e.name), "=", 0)).
				Then(clientv3.OpGet(p.b.line(e.key), clientv3.WithLastCreate()...), e.put()).
				Commit()
		})
		switch {
		case l.gone(err):
			continue
		case didNothing(err):
			l.remove(e)
			return failed(err)
		case err != nil:
			l.resign()
		case answer.Succeeded:
			e.create(answer.Header.Revision)
			if ahead := kvs(answer, 0); len(ahead) > 0 {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.await(ahead[0])
				return nil
			}
		}
		p.call()
		return nil
	}
}

// enter makes e the place's entry, unless it was given up.
func (p *place) enter(e *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over() {
		p.e = e
	}
	return !p.over()
}

var errLeft = errors.New("etcdlock: the place was given up")

// call says that the turn may have come.
func (p *place) call() {
	p.called.Store(true)
	select {
	case p.turn <- struct{}{}:
	default:
	}
}

// await waits for the end of the entry ahead. p.mu is held.
func (p *place) await(ahead *mvccpb.KeyValue) {
	if p.waits != nil {
		p.waits()
	}
	ctx, cancel := context.WithCancel(p.e.l.ctx)
	p.waits = cancel
	if !p.b.crew.start(func() {
		defer cancel()
		if p.b.deleted(ctx, string(ahead.Key), ahead.CreateRevision) {
			p.call()
		}
	}) {
		cancel()
	}
}

// deleted blocks until an entry is gone. It returns false if ctx ends before.
//
// The watch begins with what happens from now on, and one look tells what happened before
// that: a server has a watch that begins in the past wait for up to 100 ms first.
func (b *backend) deleted(ctx context.Context, name string, rev int64) bool {
	for {
		watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		events := b.client.Watch(watching, name, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		for r := range events {
			if len(r.Events) > 0 || r.Created && !b.there(ctx, name, rev) {
				cancel()
				return true
			}
		}
		cancel()
		if !pause(ctx, rewatchAfter) {
			return false
		}
	}
}

// there reports whether an entry is in the store. In doubt it is not: who asks looks again.
func (b *backend) there(ctx context.Context, name string, rev int64) bool {
	seen, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return b.client.Get(ctx, name, clientv3.WithKeysOnly())
	})
	return err == nil && len(seen.Kvs) == 1 && seen.Kvs[0].CreateRevision == rev
}

// Turn implements locker.Place.
func (p *place) Turn() <-chan struct{} { return p.turn }

// Claim implements locker.Place. While the entry ahead is being watched it needs no request
// to know that the turn has not come, but now and then makes one: the watch may hang.
func (p *place) Claim(ctx context.Context) (locker.Grant, error) {
	for {
		p.mu.Lock()
		e, gone, held, since := p.e, p.over(), p.held, time.Since(p.looked)
		p.mu.Unlock()
		switch {
		case gone:
			return nil, locker.NoEffect(errLeft)
		case e.l.ended() != nil:
			if err := p.line(ctx); err != nil {
				return nil, err
			}
			continue
		case !p.called.Swap(false) && since < e.l.ttl/2:
			return nil, &held
		}
		g, err := p.claim(ctx, e)
		if !errors.Is(err, errRemoved) {
			return g, err
		}
		if err := p.line(ctx); err != nil {
			return nil, err
		}
	}
}

// errRemoved: the entry is not in the store.
var errRemoved = errors.New("etcdlock: the entry was removed")

// claim makes one request. The entry is the lock if none was created before it.
func (p *place) claim(ctx context.Context, e *entry) (locker.Grant, error) {
	line, rev := p.b.line(e.key), e.created()
	answer, err := send(ctx, &p.b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return p.b.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(e.name), "=", rev),
				clientv3.Compare(clientv3.CreateRevision(line).WithPrefix(), ">", rev-1)).
			Else(clientv3.OpGet(e.name),
				clientv3.OpGet(line, clientv3.WithFirstCreate()...),
				clientv3.OpGet(line, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(max(rev-1, 1)))...)).
			Commit()
	})
	if err != nil {
		p.call() // it was not looked
		return nil, locker.NoEffect(failed(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over():
		return nil, locker.NoEffect(errLeft)
	case answer.Succeeded && rev > 0:
		p.claimed = true
		e.l.served(e)
		return &grant{e}, nil
	case answer.Succeeded: // nobody is there
		return nil, errRemoved
	}
	own, first, ahead := kvs(answer, 0), kvs(answer, 1), kvs(answer, 2)
	switch {
	case len(own) == 0:
		return nil, errRemoved
	case clientv3.LeaseID(own[0].Lease) != e.l.id:
		p.call() // it goes with its lease, which has ended
	case own[0].CreateRevision != rev: // the request that made it had no answer
		e.create(own[0].CreateRevision)
		p.call()
	case len(ahead) > 0:
		p.await(ahead[0])
	}
	p.looked, p.held = time.Now(), locker.HeldError{Holder: p.b.holder(first[0])}
	held := p.held
	return nil, &held
}

func kvs(answer *clientv3.TxnResponse, at int) []*mvccpb.KeyValue {
	return answer.Responses[at].GetResponseRange().Kvs
}

// over reports whether the place was claimed, or left. p.mu is held.
func (p *place) over() bool { return p.claimed || p.left }

// Leave implements locker.Place.
func (p *place) Leave(ctx context.Context) error {
	p.mu.Lock()
	if p.claimed {
		p.mu.Unlock()
		return nil
	}
	p.left = true
	if p.waits != nil {
		p.waits()
	}
	e := p.e
	p.mu.Unlock()
	if _, err := e.delete(ctx); !errors.Is(err, locker.ErrLost) {
		return err
	}
	return nil // it has gone with its lease
}
