package memlock

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/go-locker/locker"
)

// New returns a Locker over store. A nil store stands for a new one of its own; a
// nil cfg for the defaults. It is ErrInvalid if cfg breaks a documented rule.
func New(store *Store, cfg *locker.Config) (locker.Locker, error) {
	return locker.New(NewBackend(store), cfg)
}

// NewBackend returns a Backend over store, for wrapping. A nil store stands for a
// new one of its own.
func NewBackend(store *Store) locker.Backend {
	if store == nil {
		store = NewStore()
	}
	return &backend{s: store}
}

func init() {
	// All that is opened by URL in one process shares one store: that is what
	// makes mem:// a lock. It lives in the registry's closure.
	store := NewStore()
	locker.Register("mem", func(_ context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
		if u.Host != "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			return nil, fmt.Errorf("%w: a memory store has no address: mem:// or mem://?ttl=10s", locker.ErrInvalid)
		}
		return New(store, &cfg.Config)
	})
}

type backend struct {
	s      *Store
	report func(key, owner string, err error)
}

var (
	_ locker.Backend      = (*backend)(nil)
	_ locker.Queuer       = (*backend)(nil)
	_ locker.Extender     = (*backend)(nil)
	_ locker.BatchRenewer = (*backend)(nil)
	_ locker.LossPusher   = (*backend)(nil)
	_ locker.Inspector    = (*backend)(nil)
)

// Info implements locker.Backend.
func (b *backend) Info() locker.Info {
	return locker.Info{
		Name: "memory",
		Can: locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapWakeUp | locker.CapFIFO |
			locker.CapPushLoss | locker.CapExtend | locker.CapExpiry | locker.CapInspect,
		Unit:  time.Nanosecond,
		Local: true,
	}
}

func check(ctx context.Context, req locker.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if req.Mode != locker.ModeExclusive {
		return locker.ErrUnsupported
	}
	return nil
}

// TryAcquire implements locker.Backend.
func (b *backend) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := check(ctx, req); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	e := b.s.entry(req.Key)
	if e.isFree() {
		return b.s.take(e, req, b.report), nil
	}
	return nil, e.held(b.s.now())
}

// OnLoss implements locker.LossPusher.
func (b *backend) OnLoss(report func(key, owner string, err error)) { b.report = report }

// Extend implements locker.Extender.
func (b *backend) Extend(_ context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	return g.(*grant).set(ttl, true)
}

// RenewAll implements locker.BatchRenewer.
func (b *backend) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	for i, r := range renewals {
		lease, err := r.Grant.Renew(ctx, r.TTL)
		answer(i, lease, err)
	}
}

// Inspect implements locker.Inspector.
func (b *backend) Inspect(_ context.Context, key string) (locker.Holding, error) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	e := b.s.entries[key]
	if e == nil {
		return locker.Holding{}, nil
	}
	h, _ := b.s.holding(e)
	return h, nil
}

// ForceRelease implements locker.Inspector.
func (b *backend) ForceRelease(_ context.Context, key, holder string) (bool, error) {
	b.s.mu.Lock()
	now := b.s.now()
	e := b.s.entries[key]
	if e != nil {
		b.s.settle(e, now)
	}
	if e == nil || e.owner == "" || e.held(now).Holder != holder {
		b.s.mu.Unlock()
		return false, nil
	}
	owner, lost := e.owner, e.lost
	b.s.free(e, now)
	b.s.mu.Unlock()
	if lost != nil {
		lost(key, owner, &locker.LostError{Reason: locker.ReasonExpired})
	}
	return true, nil
}

// List implements locker.Inspector. It shows a key once, and looks at the map while
// others change it, which Go defines as long as the looks themselves have the mutex.
func (b *backend) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for key, e := range b.s.entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if h, held := b.s.holding(e); held && !b.s.apart(func() bool { return yield(key, h) }) {
			return nil
		}
	}
	return ctx.Err()
}

// grant is one owner's hold on a key.
type grant struct {
	store *Store
	key   string
	owner string
	token uint64
	ttl   time.Duration
	since time.Time
}

var _ locker.Grant = (*grant)(nil)

// Token implements locker.Grant.
func (g *grant) Token() uint64 { return g.token }

// Lease implements locker.Grant.
func (g *grant) Lease() locker.Lease { return locker.Lease{TTL: g.ttl, Since: g.since} }

// Renew implements locker.Grant.
func (g *grant) Renew(_ context.Context, ttl time.Duration) (locker.Lease, error) {
	return g.set(ttl, false)
}

func (g *grant) set(ttl time.Duration, shorten bool) (locker.Lease, error) {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e, err := g.mine(now)
	if err != nil {
		return locker.Lease{}, err
	}
	if ends := now + ttl; shorten || ends > e.ends {
		e.ends = ends
		if e.queue.Len() > 0 {
			s.setTimer(e)
		}
	}
	return locker.Lease{TTL: ttl, Since: s.epoch.Add(now)}, nil
}

// Release implements locker.Grant.
func (g *grant) Release(context.Context) error {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e, err := g.mine(now)
	if err != nil {
		return err
	}
	s.free(e, now)
	return nil
}

// mine returns the key's entry if it still stands for this grant.
func (g *grant) mine(now instant) (*entry, error) {
	e := g.store.entries[g.key]
	if e != nil {
		g.store.settle(e, now)
	}
	switch {
	case e == nil || e.owner == "":
		return nil, &locker.LostError{Reason: locker.ReasonExpired}
	case e.owner != g.owner:
		return nil, &locker.LostError{Reason: locker.ReasonTaken}
	}
	return e, nil
}
