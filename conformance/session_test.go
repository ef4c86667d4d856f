package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// sessions make the world's store one whose locks stand on sessions, as Postgres'
// advisory locks do: each client has one for each TTL, up to four. A session is alive
// as long as it is heard of, whatever about, and when it ends, all its locks do.
type sessions struct {
	w  *world
	mu sync.Mutex

	named map[string]*session // by name
	owned map[string]*session // by the owner of a grant on it
	last  int

	// Defects.
	single    bool              // the end of a session takes one lock with it
	reentrant bool              // a session gets what it has, and gives it back by name
	clung     bool              // a client goes on with a session that was ended
	mute      bool              // losses are not pushed
	first     map[string]string // if set, the holder is told who had the key first
}

// session is one of a client's.
type session struct {
	name   string
	client *sessionClient
	ttl    time.Duration
	grants map[*grant]struct{}
	heard  time.Time
	end    *time.Timer
	over   bool
	forced bool // it was ended by ForceRelease
}

// sessionClient is a client as a Backend whose locks stand on sessions.
type sessionClient struct {
	locker.Backend
	locker.Queuer
	locker.Closer
	*sessions
	c      *client
	report func(key, owner string, err error)
	own    map[time.Duration]*session
}

var (
	_ locker.LossPusher = (*sessionClient)(nil)
	_ locker.Inspector  = (*sessionClient)(nil)
)

// onSessions gives the world sessions.
func onSessions(w *world) { withSessions(w) }

func withSessions(w *world) *sessions {
	s := &sessions{w: w, named: make(map[string]*session), owned: make(map[string]*session)}
	clients := make(map[*client]*sessionClient)
	w.info = func(info *locker.Info) {
		info.Can = info.Can&^locker.CapExtend | locker.CapSessionHolder
		info.Unit, info.MinTTL = time.Millisecond, 100*time.Millisecond
		info.Local, info.Multiplexed = false, true
	}
	w.onOpen = func(c *client) locker.Backend {
		s.mu.Lock()
		defer s.mu.Unlock()
		clients[c] = &sessionClient{Backend: c, Queuer: c, Closer: c, sessions: s, c: c, own: make(map[time.Duration]*session)}
		return clients[c]
	}
	w.attempt = func(ctx context.Context, c *client, req locker.Request, next attempt) (locker.Grant, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.take(ctx, clients[c], req, next)
	}
	w.renew = func(ctx context.Context, g *grant, ttl time.Duration) (locker.Lease, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !g.on.hear(ctx) {
			return locker.Lease{}, &locker.LostError{Reason: locker.ReasonSession}
		}
		return g.Grant.Renew(ctx, ttl)
	}
	w.release = func(ctx context.Context, g *grant) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !g.on.hear(ctx) {
			return &locker.LostError{Reason: locker.ReasonSession}
		}
		s.forget(g)
		return g.Grant.Release(ctx)
	}
	return s
}

// OnLoss implements locker.LossPusher.
func (b *sessionClient) OnLoss(report func(key, owner string, err error)) {
	b.report = report
	if b.mute {
		b.report = func(string, string, error) {}
	}
}

// take is an attempt on the client's session for the TTL. s.mu is held.
func (s *sessions) take(ctx context.Context, b *sessionClient, req locker.Request, next attempt) (locker.Grant, error) {
	on := b.own[req.TTL]
	switch alive := on != nil && on.hear(ctx); {
	case alive:
	case on != nil && on.forced && s.clung:
		return nil, io.ErrClosedPipe
	default:
		if on = s.open(b, req.TTL); on == nil {
			return nil, fmt.Errorf("%w: a fifth TTL", locker.ErrUnsupported)
		}
	}
	if s.reentrant {
		for g := range on.grants {
			if g.req.Key == req.Key {
				again := &grant{c: b.c, req: req, Grant: g.Grant, on: on}
				on.grants[again] = struct{}{}
				s.owned[req.Owner] = on
				return again, nil
			}
		}
	}
	g, err := next(req)
	if held, ok := errors.AsType[*locker.HeldError](err); ok {
		err = &locker.HeldError{Key: held.Key, Holder: s.holder(req.Key, held.Holder), Remaining: held.Remaining}
	}
	if g != nil {
		g.(*grant).on = on
		on.grants[g.(*grant)] = struct{}{}
		s.owned[req.Owner] = on
	}
	return g, err
}

// open begins a session. It is nil if there are too many. s.mu is held.
func (s *sessions) open(b *sessionClient, ttl time.Duration) *session {
	for ttl, on := range b.own {
		if on.over || len(on.grants) == 0 {
			delete(b.own, ttl)
		}
	}
	if len(b.own) == 4 {
		return nil
	}
	s.last++
	on := &session{name: fmt.Sprintf("pid %d", s.last), client: b, ttl: ttl, grants: make(map[*grant]struct{}), heard: time.Now()}
	on.end = time.AfterFunc(ttl, func() { s.finish(on) })
	s.named[on.name], b.own[ttl] = on, on
	return on
}

// hear notes that the session is alive, and so are all its locks. It reports false if
// it is not.
func (on *session) hear(ctx context.Context) bool {
	now := time.Now()
	switch {
	case on.over || now.Sub(on.heard) >= on.ttl:
		return false
	case now.Equal(on.heard):
		return true
	}
	on.heard = now
	on.end.Reset(on.ttl)
	for g := range on.grants {
		_, _ = g.Grant.Renew(ctx, on.ttl)
	}
	return true
}

// forget takes a grant off its session. s.mu is held.
func (s *sessions) forget(g *grant) {
	delete(g.on.grants, g)
	delete(s.owned, g.req.Owner)
}

// finish ends a session, and tells its client.
func (s *sessions) finish(on *session) {
	s.mu.Lock()
	on.over = true
	on.end.Stop()
	delete(s.named, on.name)
	var lost []*grant
	for g := range on.grants {
		s.forget(g)
		_ = g.Grant.Release(context.Background())
		if lost = append(lost, g); s.single {
			break
		}
	}
	s.mu.Unlock()
	for _, g := range lost {
		on.client.report(g.req.Key, g.req.Owner, &locker.LostError{Reason: locker.ReasonSession})
	}
}

// holder names the session of what the store below shows: an owner, and its label. A
// waiter whose turn has come stands on none yet. s.mu is held.
func (s *sessions) holder(key, shown string) string {
	owner, _, _ := strings.Cut(shown, " ")
	name := "a waiter"
	if on := s.owned[owner]; on != nil {
		name = on.name
	}
	if s.first != nil {
		if s.first[key] == "" {
			s.first[key] = name
		}
		name = s.first[key]
	}
	return name
}

// Inspect implements locker.Inspector.
func (b *sessionClient) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	h, err := b.c.Inspect(ctx, key)
	if h.Holder != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		h.Holder = b.holder(key, h.Holder)
	}
	return h, err
}

// ForceRelease implements locker.Inspector.
func (b *sessionClient) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	h, err := b.Inspect(ctx, key)
	if err != nil || h.Holder != holder {
		return false, err
	}
	b.mu.Lock()
	on := b.named[holder]
	if on == nil {
		b.mu.Unlock()
		return false, nil
	}
	on.forced = true
	b.mu.Unlock()
	b.finish(on)
	return true, nil
}

// List implements locker.Inspector. The store knows keys by number.
func (b *sessionClient) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	return b.c.List(ctx, func(key string, h locker.Holding) bool {
		b.mu.Lock()
		h.Holder = b.holder(key, h.Holder)
		b.mu.Unlock()
		number := fnv.New64a()
		_, _ = number.Write([]byte(key))
		return yield(fmt.Sprint(number.Sum64()), h)
	})
}
