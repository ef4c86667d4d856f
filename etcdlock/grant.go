package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
)

// TokenStep is how far the tokens of two entries are from each other at least: a token is the
// revision at which the entry was created, times TokenStep.
const TokenStep = 1024

// entry makes the entry of a request.
func (b *backend) entry(l *lease, req locker.Request, p *place) *entry {
	return &entry{
		l: l, name: b.line(req.Key) + req.Owner, key: req.Key, owner: req.Owner, holder: req.Holder(), place: p,
	}
}

// created reads a create revision, which a late answer may have set.
func (e *entry) created() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rev
}

func (e *entry) create(rev int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rev = rev
}

// put is the write that makes the entry.
func (e *entry) put() clientv3.Op {
	return clientv3.OpPut(e.name, e.holder, clientv3.WithLease(e.l.id))
}

// TryAcquire implements locker.Backend: the key is free if nobody stands in its line.
func (b *backend) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	for {
		l, err := b.lease(ctx, req.TTL, req.Key)
		if err != nil {
			return nil, err
		}
		g, err := b.try(ctx, b.entry(l, req, nil))
		switch {
		case l.gone(err):
		case g == nil:
			return nil, err
		default:
			return g, err
		}
	}
}

// gone reports whether err says that there is no such lease any more, so that nothing was
// put on it.
func (l *lease) gone(err error) bool {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.end(errEnded)
		return true
	}
	return errors.Is(err, errEnded)
}

func (b *backend) try(ctx context.Context, e *entry) (*grant, error) {
	if err := e.l.add(e); err != nil {
		return nil, err
	}
	line := b.line(e.key)
	answer, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return b.kv.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(line).WithPrefix(), "=", 0)).
			Then(e.put()).
			Else(clientv3.OpGet(line, clientv3.WithFirstCreate()...)).
			Commit()
	})
	switch {
	case didNothing(err):
		e.l.remove(e)
		return nil, failed(err)
	case err != nil:
		e.l.resign()
		return &grant{e}, failed(err)
	case answer.Succeeded:
		e.create(answer.Header.Revision)
		return &grant{e}, nil
	}
	first := answer.Responses[0].GetResponseRange().Kvs[0]
	if string(first.Key) == e.name { // an earlier sending of this command did it
		e.create(first.CreateRevision)
		return &grant{e}, nil
	}
	e.l.remove(e)
	return nil, &locker.HeldError{Holder: b.holder(first), Remaining: b.remaining(ctx, first.Lease)}
}

// holder is how the holder of an entry is shown. Clients that are not ours leave the value
// empty, and are known by their entry.
func (b *backend) holder(kv *mvccpb.KeyValue) string {
	if len(kv.Value) > 0 {
		return string(kv.Value)
	}
	_, id, _ := b.keyOf(string(kv.Key))
	return id
}

// remaining is how long a lease has, if it can be learned.
func (b *backend) remaining(ctx context.Context, id int64) time.Duration {
	if id == 0 {
		return 0
	}
	seen, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return b.lessor.TimeToLive(ctx, clientv3.LeaseID(id))
	})
	if err != nil || seen.TTL < 0 {
		return 0
	}
	// The server leaves out what is less than a second.
	return time.Duration(min(seen.TTL+1, seen.GrantedTTL)) * time.Second
}

// grant implements locker.Grant by an entry at the head of its line.
type grant struct{ *entry }

// Token implements locker.Grant.
func (g *grant) Token() uint64 { return uint64(g.created()) * TokenStep }

// Lease implements locker.Grant.
func (g *grant) Lease() locker.Lease { return locker.Lease{TTL: g.l.ttl, Since: g.l.since()} }

// Renew implements locker.Grant. It renews all that stands on the lease.
func (g *grant) Renew(ctx context.Context, ttl time.Duration) (lease locker.Lease, err error) {
	g.l.b.RenewAll(ctx, []locker.Renewal{{Grant: g, TTL: ttl}}, func(_ int, l locker.Lease, e error) { lease, err = l, e })
	return lease, err
}

// maxTxnOps is how many operations a server takes in one request, as it comes.
const maxTxnOps = 128

// RenewAll implements locker.BatchRenewer: one request for each lease, and one for each
// maxTxnOps locks, which looks whether they are still there.
func (b *backend) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	byLease := make(map[*lease][]int)
	for i, r := range renewals {
		g := r.Grant.(*grant)
		if r.TTL != g.l.asked && r.TTL != g.l.ttl {
			answer(i, locker.Lease{}, locker.ErrUnsupported)
			continue
		}
		byLease[g.l] = append(byLease[g.l], i)
	}
	var all sync.WaitGroup
	for l, indices := range byLease {
		alive := make(chan struct{})
		var err error
		all.Go(func() {
			err = l.keepAlive(ctx)
			close(alive)
		})
		for len(indices) > 0 {
			n := min(len(indices), maxTxnOps)
			chunk := indices[:n]
			indices = indices[n:]
			all.Go(func() {
				there, lookErr := b.look(ctx, renewals, chunk)
				<-alive
				for at, i := range chunk {
					switch lost := l.lost(); {
					case lost != nil:
						answer(i, locker.Lease{}, lost)
					case lookErr != nil:
						answer(i, locker.Lease{}, lookErr)
					case !there[at]:
						answer(i, locker.Lease{}, errGone())
					case err != nil:
						answer(i, locker.Lease{}, err)
					default:
						answer(i, locker.Lease{TTL: l.ttl, Since: l.since()}, nil)
					}
				}
			})
		}
	}
	all.Wait()
}

// look reports which of the grants are still there.
func (b *backend) look(ctx context.Context, renewals []locker.Renewal, indices []int) ([]bool, error) {
	gets := make([]clientv3.Op, len(indices))
	for at, i := range indices {
		gets[at] = clientv3.OpGet(renewals[i].Grant.(*grant).name, clientv3.WithKeysOnly())
	}
	seen, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return b.kv.Txn(ctx).Then(gets...).Commit()
	})
	switch half := len(indices) / 2; {
	case errors.Is(err, rpctypes.ErrTooManyOps) && half > 0: // the server is set up to take fewer
		there, err := b.look(ctx, renewals, indices[:half])
		if err != nil {
			return nil, err
		}
		rest, err := b.look(ctx, renewals, indices[half:])
		return append(there, rest...), err
	case err != nil:
		return nil, failed(err)
	}
	there := make([]bool, len(indices))
	for at, i := range indices {
		kvs := seen.Responses[at].GetResponseRange().Kvs
		there[at] = len(kvs) == 1 && kvs[0].CreateRevision == renewals[i].Grant.(*grant).created()
	}
	return there, nil
}

// Release implements locker.Grant.
func (g *grant) Release(ctx context.Context) error {
	there, err := g.delete(ctx)
	if err == nil && !there {
		return errGone()
	}
	return err
}

// delete takes the entry out of the store, and reports whether it was there. If it was created
// at another revision than the one that is known, it is not this one.
func (e *entry) delete(ctx context.Context) (there bool, err error) {
	if lost := e.l.lost(); lost != nil {
		return false, lost
	}
	created := clientv3.Compare(clientv3.CreateRevision(e.name), ">", 0)
	if rev := e.created(); rev > 0 {
		created = clientv3.Compare(clientv3.CreateRevision(e.name), "=", rev)
	}
	answer, err := send(ctx, &e.l.b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return e.l.b.kv.Txn(ctx).If(created).Then(clientv3.OpDelete(e.name)).Commit()
	})
	if err != nil {
		if isPermanent(err) || !didNothing(err) {
			e.l.resign() // it may stay, until the lease ends
		}
		return false, failed(err)
	}
	e.l.remove(e)
	return answer.Succeeded, nil
}
