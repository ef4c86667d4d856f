package etcdlock

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/suspend"
)

// lease carries the entries of many locks, and of waiters. It is kept alive by whatever
// renews one of them.
type lease struct {
	b     *backend
	id    clientv3.LeaseID
	asked time.Duration // the lifetime that was asked for
	ttl   time.Duration // and what the server gave

	ctx    context.Context // ends with the lease
	cancel context.CancelFunc

	mu       sync.Mutex
	base     stamp               // when the last request was sent that has refreshed it
	refresh  *refresh            // on its way
	entries  map[*entry]struct{} // what stands in the store, or may
	places   int                 // those of them that wait
	tended   bool                // somebody keeps it alive for them
	idle     *time.Timer         // ends it when it has had no entries for some time
	resigned bool                // it takes no new entries, and ends with its last one
	err      error               // it has ended
}

// entry is what a lock, or a waiter, is in the store.
type entry struct {
	l      *lease
	name   string // the key in etcd: nobody else has one of this name
	key    string
	owner  string
	holder string

	place *place // of a waiter

	mu  sync.Mutex
	rev int64 // at which it was created; 0: not known
}

// refresh is one request that keeps a lease alive.
type refresh struct {
	done chan struct{}
	err  error
}

// idleFor is for how long a lease without entries is kept for the next one.
const idleFor = time.Minute

// newLease makes a lease, and the entry by which its end is seen. It blocks for two requests.
func (b *backend) newLease(ctx context.Context, ttl time.Duration) (*lease, error) {
	// Its id is ours to choose: so it can be ended without an answer, too.
	l := &lease{
		b: b, id: clientv3.LeaseID(1 + rand.Int64N(math.MaxInt64)), asked: ttl, ttl: ttl,
		base: now(), entries: make(map[*entry]struct{}),
	}
	granted, err := send(ctx, &b.requester, func(ctx context.Context) (*pb.LeaseGrantResponse, error) {
		return b.alive.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(l.id), TTL: int64(ttl / time.Second)})
	})
	if err != nil {
		if !didNothing(err) && !b.crew.start(l.revoke) {
			l.revoke()
		}
		return nil, failed(err)
	}
	l.ttl = time.Duration(granted.TTL) * time.Second
	l.ctx, l.cancel = context.WithCancel(b.ctx)
	if !b.admit(l) {
		l.revoke()
		return nil, locker.Permanent(locker.ErrClosed)
	}
	_, err = send(ctx, &b.requester, func(ctx context.Context) (*clientv3.PutResponse, error) {
		return b.kv.Put(ctx, l.sentinel(), "", clientv3.WithLease(l.id))
	})
	if err != nil {
		l.end(failed(err))
		return nil, failed(err)
	}
	b.crew.start(l.watch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest() // who asked for it may have left
	return l, nil
}

func (l *lease) sentinel() string { return l.b.sentinel(l.id) }

var errEnded = errors.New("etcdlock: the lease has ended")

// watch ends the lease as soon as the server has: then its sentinel goes. An entry that an
// operator removes is named there. It returns when the lease has ended.
//
// One look tells what happened before the watch.
func (l *lease) watch() {
	for {
		l.b.watch(l.ctx, l.sentinel(), func(seen clientv3.WatchResponse) (enough bool) {
			for _, event := range seen.Events {
				if event.Type == clientv3.EventTypeDelete {
					l.end(errEnded)
				} else {
					l.removed(string(event.Kv.Value))
				}
			}
			return seen.Created && !l.exists()
		}, clientv3.WithCreatedNotify())
		// The watch has ended, of which its client has no more to say: a member without a
		// leader, for example.
		if !pause(l.ctx, rewatchAfter) {
			return
		}
	}
}

// exists looks whether the sentinel is in the store, and ends the lease if not. It returns false
// if that is not known, too.
func (l *lease) exists() bool {
	seen, err := send(l.ctx, &l.b.requester, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return l.b.kv.Get(ctx, l.sentinel(), clientv3.WithCountOnly())
	})
	if err == nil && seen.Count == 0 {
		l.end(errEnded)
	}
	return err == nil && seen.Count > 0
}

// removed reports the loss of the entry that the sentinel names.
func (l *lease) removed(note string) {
	l.mu.Lock()
	var lost *entry
	for e := range l.entries {
		if e.place == nil && removal(e.name, e.created()) == note {
			lost = e
		}
	}
	l.mu.Unlock()
	if lost != nil {
		l.b.report(lost.key, lost.owner, errGone())
	}
}

// errGone is the loss of an entry that is not in the store, though its lease may live.
func errGone() error {
	return &locker.LostError{Reason: locker.ReasonExpired, Err: errors.New("etcdlock: the entry is gone from the store: removed by an operator, perhaps")}
}

// removal is what the sentinel of a lease is set to when an operator has removed an entry.
func removal(name string, created int64) string { return strconv.FormatInt(created, 10) + " " + name }

// rewatchAfter is the pause before a watch that the server has ended is made anew.
const rewatchAfter = 50 * time.Millisecond

// pause waits for d and reports whether ctx let it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stamp is an instant, and how long the machine had been suspended by then.
type stamp struct {
	at    time.Time
	slept time.Duration
}

func now() stamp { return stamp{time.Now(), suspend.Total()} }

// since is when the lease was refreshed last, and that much earlier as the machine has been
// suspended since, for which its clock stood still.
func (l *lease) since() time.Time {
	l.mu.Lock()
	base := l.base
	l.mu.Unlock()
	if slept := suspend.Total() - base.slept; slept > suspend.Jitter {
		return base.at.Add(-slept)
	}
	return base.at
}

// ended is why the lease has ended, or nil.
func (l *lease) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// lost is the error for what stood on a lease that has ended; else nil.
func (l *lease) lost() error {
	if err := l.ended(); err != nil {
		return &locker.LostError{Reason: locker.ReasonSession, Err: err}
	}
	return nil
}

// fresh sees to it that what is put on the lease now lives for most of its lifetime.
// If the server is slow to refresh it, what it has left will do, if that is not too little.
func (l *lease) fresh(ctx context.Context) (err error) {
	for range 3 {
		if time.Since(l.since()) < l.ttl/3 {
			return nil
		}
		err = l.keepAlive(ctx)
		switch {
		case err == nil, l.ended() != nil, ctx.Err() != nil:
			return err
		case time.Since(l.since()) < l.ttl*2/3:
			return nil
		}
	}
	return err
}

// keepAlive refreshes the lease. Who comes while a request is under way waits for that one.
func (l *lease) keepAlive(ctx context.Context) error {
	l.mu.Lock()
	r := l.refresh
	if r == nil && l.err == nil {
		r = &refresh{done: make(chan struct{})}
		if !l.b.crew.start(func() { l.run(r) }) {
			r = nil
		}
		l.refresh = r
	}
	l.mu.Unlock()
	if r == nil {
		return locker.ErrClosed // or the lease has ended: callers ask l.ended
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run makes one request. The client's own KeepAliveOnce repeats it without a pause while
// there is no server.
func (l *lease) run(r *refresh) {
	sent := now()
	// Those who renew locks try again after a part of what the lease has left, and on another
	// connection if nothing came on this one: a member so slow cannot keep locks so short.
	answer, err := sendWithin(l.ctx, &l.b.requester, l.ttl/4, func(ctx context.Context) (*pb.LeaseKeepAliveResponse, error) {
		stream, err := l.b.alive.LeaseKeepAlive(ctx)
		if err != nil {
			return nil, err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
			return nil, err
		}
		return stream.Recv()
	})
	if err == nil && answer.TTL <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.end(errEnded)
		err = l.lost()
	}
	l.mu.Lock()
	if err == nil {
		l.base = sent
	}
	l.refresh = nil
	resigned := l.resigned
	l.mu.Unlock()
	if err == nil && resigned {
		l.b.crew.start(l.sweep)
	}
	r.err = failed(err)
	close(r.done)
}

// add notes an entry before it is put into the store.
func (l *lease) add(e *entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.resigned {
		return errEnded
	}
	if l.idle != nil {
		l.idle.Stop()
	}
	l.entries[e] = struct{}{}
	if e.place != nil {
		l.places++
		l.tended = l.tended || l.b.crew.start(l.tend)
	}
	return nil
}

// remove notes that an entry is not in the store any more.
func (l *lease) remove(e *entry) {
	l.mu.Lock()
	_, there := l.entries[e]
	delete(l.entries, e)
	if there && e.place != nil {
		l.places--
	}
	done := l.resigned && len(l.entries) == 0 && l.err == nil
	l.rest()
	l.mu.Unlock()
	if done {
		l.end(errEnded)
	}
}

// rest has a lease without entries retire after some time. A short one ends by itself. l.mu is held.
func (l *lease) rest() {
	switch {
	case len(l.entries) > 0 || l.err != nil || l.ttl <= idleFor:
	case l.idle == nil:
		l.idle = time.AfterFunc(idleFor, l.retire)
	default:
		l.idle.Reset(idleFor)
	}
}

// sweep removes what has arrived on a lease after it was given up: nobody knows of it.
func (l *lease) sweep() {
	known := map[string]bool{l.sentinel(): true}
	l.mu.Lock()
	for e := range l.entries {
		known[e.name] = true
	}
	l.mu.Unlock()
	seen, err := send(l.ctx, &l.b.requester, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return l.b.lessor.TimeToLive(ctx, l.id, clientv3.WithAttachedKeys())
	})
	if err != nil {
		return // again at the next refresh
	}
	for _, name := range seen.Keys {
		if !known[string(name)] {
			l.strike(string(name))
		}
	}
}

// strike removes an entry from the store, if it stands on the lease: a waiter who got in line
// anew has one of the same name on another.
func (l *lease) strike(name string) {
	here := clientv3.Compare(clientv3.LeaseValue(name), "=", l.id)
	_, _ = send(l.ctx, &l.b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return l.b.kv.Txn(ctx).If(here).Then(clientv3.OpDelete(name)).Commit()
	})
}

// retire ends the lease if it still has no entries.
func (l *lease) retire() {
	l.mu.Lock()
	idle := len(l.entries) == 0
	l.mu.Unlock()
	if idle {
		l.resign()
	}
}

// busy reports whether there are entries on the lease.
func (l *lease) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries) > 0
}

// served notes that a waiter has become a holder, who hears of the lease's end from now on.
// It returns false if the lease has ended already.
func (l *lease) served(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false
	}
	e.place = nil
	l.places--
	return true
}

// left notes that a waiter's entry is not to be kept in the store.
func (l *lease) left(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.entries[e]; there && e.place != nil {
		e.place = nil
		l.places--
	}
}

// tend keeps the lease alive as long as somebody waits: nobody else renews a waiter.
func (l *lease) tend() {
	for {
		if !pause(l.ctx, max(l.ttl/3-time.Since(l.since()), l.ttl/20)) {
			return
		}
		l.mu.Lock()
		l.tended = l.places > 0
		waits := l.tended
		l.mu.Unlock()
		if !waits {
			return
		}
		_ = l.fresh(l.ctx) // else again
	}
}

// resign takes the lease out of service: what was sent last may yet arrive, and only the end
// of the lease is sure to end that too.
func (l *lease) resign() {
	l.mu.Lock()
	l.resigned = true
	done := len(l.entries) == 0
	l.mu.Unlock()
	l.b.forget(l)
	if done {
		l.end(errEnded)
	}
}

// end takes note of the lease's end, which is that of all that stands on it, and sees to it
// that it has ended in the store too.
func (l *lease) end(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	var held []*entry
	var waiting []*place
	for e := range l.entries {
		if e.place != nil {
			waiting = append(waiting, e.place)
		} else {
			held = append(held, e)
		}
	}
	l.entries = nil
	if l.idle != nil {
		l.idle.Stop()
	}
	l.mu.Unlock()
	l.cancel()
	l.b.forget(l)
	l.b.leave(l)
	for _, e := range held {
		l.b.report(e.key, e.owner, &locker.LostError{Reason: locker.ReasonSession, Err: err})
	}
	for _, p := range waiting {
		p.call()
	}
	// Those who stood on it know. Now others, too, may have their keys.
	l.b.crew.start(l.revoke)
}

// revoke ends the lease in the store, if it has not ended there, and repeats that until it
// is done or the lease has ended by itself. It looks first: a client may log what is refused.
func (l *lease) revoke() {
	ctx, cancel := context.WithTimeout(l.b.last, l.ttl)
	defer cancel()
	for again := rewatchAfter; ; again = min(2*again, time.Second) {
		seen, err := send(ctx, &l.b.requester, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
			return l.b.lessor.TimeToLive(ctx, l.id)
		})
		if err == nil && seen.TTL >= 0 {
			_, err = send(ctx, &l.b.requester, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
				return l.b.lessor.Revoke(ctx, l.id)
			})
		}
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || isPermanent(err) || !pause(ctx, again) {
			return
		}
	}
}
