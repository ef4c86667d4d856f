package etcdlock

import (
	"context"
	"errors"
	"fmt"
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
	awaited       int64              // at which that was created, while it is waited for
	doubt         error              // why it is open whether the entry is in the store
	looked        time.Time          // when the store last said that it is not its turn
	held          locker.HeldError   // and who was first
}

// Enqueue implements locker.Queuer. A place whose request had no answer is a place too, for
// what may stand in the line has to be taken out again: its Claim is refused.
func (b *backend) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	p := &place{b: b, req: req, turn: make(chan struct{}, 1)}
	if err := p.queue(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// queue puts the entry at the end of the line, also anew.
func (p *place) queue(ctx context.Context) error {
	for {
		l, err := p.b.lease(ctx, p.req.TTL, p.req.Key)
		if err != nil {
			return err
		}
		e := p.b.entry(l, p.req, p)
		if l.add(e) != nil {
			continue
		}
		if !p.admit(e) {
			l.remove(e)
			return errLeft
		}
		answer, err := send(ctx, &p.b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return p.b.kv.Txn(ctx).
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
			p.unsure(err)
		case !answer.Succeeded: // an earlier one has arrived
			p.unsure(errThere)
		default:
			e.create(answer.Header.Revision)
			if ahead := kvs(answer, 0); len(ahead) > 0 {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.awaited = 0 // by a watch that may end with another lease
				p.await(ahead[0])
				return nil
			}
		}
		p.call()
		return nil
	}
}

// unsure notes why it is open whether the entry is in the store.
func (p *place) unsure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubt = err
}

// admit makes e the place's entry, unless it was given up.
func (p *place) admit(e *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over() {
		p.e = e
	}
	return !p.over()
}

var (
	errLeft  = errors.New("etcdlock: the place was given up")
	errThere = errors.New("etcdlock: the entry is in the store already")
)

// call says that the turn may have come.
func (p *place) call() {
	p.called.Store(true)
	select {
	case p.turn <- struct{}{}:
	default:
	}
}

// await waits for the end of the entry ahead, if it does not do so already. p.mu is held.
func (p *place) await(ahead *mvccpb.KeyValue) {
	rev := ahead.CreateRevision
	if p.awaited == rev {
		return
	}
	p.stopWaiting()
	ctx, cancel := context.WithCancel(p.e.l.ctx)
	p.waits, p.awaited = cancel, rev
	if !p.b.crew.start(func() {
		defer cancel()
		gone := p.b.deleted(ctx, string(ahead.Key), rev)
		p.mu.Lock()
		if p.awaited == rev {
			p.awaited = 0
		}
		p.mu.Unlock()
		if gone {
			p.call()
		}
	}) {
		cancel()
	}
}

func (p *place) stopWaiting() {
	if p.waits != nil {
		p.waits()
	}
}

// deleted blocks until an entry is gone. It returns false if ctx ends before.
//
// One look tells what happened before the watch.
func (b *backend) deleted(ctx context.Context, name string, rev int64) bool {
	for {
		gone := false
		b.watch(ctx, name, func(seen clientv3.WatchResponse) bool {
			gone = len(seen.Events) > 0 || seen.Created && !b.there(ctx, name, rev)
			return gone
		}, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		if gone || !pause(ctx, rewatchAfter) {
			return gone
		}
	}
}

// there reports whether an entry is in the store. In doubt it is not: who asks looks again.
func (b *backend) there(ctx context.Context, name string, rev int64) bool {
	seen, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return b.kv.Get(ctx, name, clientv3.WithKeysOnly())
	})
	return err == nil && len(seen.Kvs) == 1 && seen.Kvs[0].CreateRevision == rev
}

// Turn implements locker.Place.
func (p *place) Turn() <-chan struct{} { return p.turn }

// Claim implements locker.Place. While the entry ahead is being watched it needs no request
// to know that the turn has not come, but now and then makes one: the watch may hang, and who
// is first may be gone when his lease was to end.
func (p *place) Claim(ctx context.Context) (locker.Grant, error) {
	for {
		p.mu.Lock()
		e, gone, doubt, held, since := p.e, p.over(), p.doubt, p.held, time.Since(p.looked)
		p.mu.Unlock()
		switch {
		case gone:
			return nil, errLeft
		case doubt != nil:
			return nil, fmt.Errorf("etcdlock: getting in line: %w", doubt)
		case e.l.ended() != nil:
			if err := p.queue(ctx); err != nil {
				return nil, err
			}
			continue
		case !p.called.Swap(false) && since < min(e.l.ttl/2, held.Remaining, unseen):
			held.Remaining -= since
			return nil, &held
		}
		g, err := p.claim(ctx, e)
		if !errors.Is(err, errRemoved) {
			return g, err
		}
		e.l.remove(e)
		if err := p.queue(ctx); err != nil {
			return nil, err
		}
	}
}

// unseen is for how long at most a watch is trusted that says nothing.
const unseen = 10 * time.Second

// errRemoved: the entry is not in the store, or goes with its lease.
var errRemoved = errors.New("etcdlock: the entry was removed")

// claim makes one request. The entry is the lock if none was created before it.
func (p *place) claim(ctx context.Context, e *entry) (locker.Grant, error) {
	line, rev := p.b.line(e.key), e.created()
	answer, err := send(ctx, &p.b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return p.b.kv.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(e.name), "=", rev),
				clientv3.Compare(clientv3.CreateRevision(line).WithPrefix(), ">", rev-1)).
			Else(clientv3.OpGet(e.name),
				clientv3.OpGet(line, clientv3.WithFirstCreate()...),
				clientv3.OpGet(line, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(max(rev-1, 1)))...)).
			Commit()
	})
	if err != nil {
		return nil, failed(err)
	}
	if answer.Succeeded {
		return p.take(e)
	}
	own, first, ahead := kvs(answer, 0), kvs(answer, 1), kvs(answer, 2)
	if len(own) == 0 || own[0].CreateRevision != rev {
		return nil, errRemoved
	}
	held := locker.HeldError{Holder: p.b.holder(first[0]), Remaining: p.b.remaining(ctx, first[0].Lease)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(ahead) > 0 && !p.over() {
		p.await(ahead[0])
	}
	p.looked, p.held = time.Now(), held
	return nil, &held
}

// take makes the entry, which is the first of its line, a lock, unless its lease has ended.
func (p *place) take(e *entry) (locker.Grant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over():
		return nil, errLeft
	case !e.l.served(e):
		return nil, errRemoved
	}
	p.claimed = true
	p.stopWaiting()
	return &grant{e}, nil
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
	p.stopWaiting()
	e := p.e
	p.mu.Unlock()
	e.l.left(e)
	if _, err := e.delete(ctx); !errors.Is(err, locker.ErrLost) {
		return err
	}
	return nil // it has gone with its lease
}
