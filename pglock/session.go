package pglock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// session is a session of the server that holds advisory locks, for one lifetime. To the
// server a session may take the same lock again and again, so what it holds is kept here.
type session struct {
	*wire
	ttl  time.Duration
	name string // application_name

	// Guarded by sessions.mu.
	held     map[int64]*grant // taken, or being taken, and not given back
	live     int              // those of them that nobody has begun to give back
	resigned bool             // it takes no new locks, and ends with its last live one
	sweeping *time.Timer      // see sweep
	open     *time.Timer      // until it fires, what was given back last may have no answer
}

const (
	// stuckAfter is how long the server may owe a session an answer until new locks go to
	// another one.
	stuckAfter = time.Second

	// keptFor is how long a session without locks is kept for the next one.
	keptFor = time.Minute

	// maxTTLs is how many different lifetimes the locks of a backend have at a time.
	maxTTLs = 4
)

// slot is what a session is found by: a lifetime, and which of the sessions that share
// the locks.
type slot struct {
	ttl time.Duration
	nth int
}

// opening is a session that is being made, or has been.
type opening struct {
	done chan struct{} // closed when one of the others is set
	s    *session
	err  error
}

// sessions are those of a backend.
type sessions struct {
	connector *connector
	spread    int // sessions that share the locks of a lifetime
	most      int // locks
	report    func(key, owner string, err error)

	ctx     context.Context // ends with the backend
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	current map[slot]*opening
	all     map[*session]struct{} // that have not ended
	taken   int                   // entries of all their held
	closed  bool
}

var errManyTTLs = fmt.Errorf("%w: locks of more than %d different TTLs at a time, for each of which there is a session of its own",
	locker.ErrUnsupported, maxTTLs)

func newSessions(c *connector, cfg *Config) *sessions {
	ss := &sessions{
		connector: c, spread: max(cfg.Sessions, 1), most: cmp.Or(cfg.MaxLocks, defaultMaxLocks),
		report:  func(string, string, error) {},
		current: make(map[slot]*opening), all: make(map[*session]struct{}),
	}
	ss.ctx, ss.cancel = context.WithCancel(context.Background())
	return ss
}

// session returns the session for a lock, and makes it if need be. Its making goes on if ctx
// ends: others may wait for it.
func (ss *sessions) session(ctx context.Context, ttl time.Duration, number int64) (*session, error) {
	at := slot{ttl, int(uint64(number) % uint64(ss.spread))}
	ss.mu.Lock()
	o, err := ss.at(at)
	ss.mu.Unlock()
	if err != nil {
		return nil, locker.Permanent(err)
	}
	select {
	case <-o.done:
		return o.s, o.err
	case <-ctx.Done():
		return nil, locker.NoEffect(ctx.Err())
	}
}

// at is the session in a slot, or the making of it. ss.mu is held.
func (ss *sessions) at(at slot) (*opening, error) {
	if ss.closed {
		return nil, locker.ErrClosed
	}
	o := ss.current[at]
	if o != nil && (o.s == nil || o.s.usable()) {
		return o, nil
	}
	if o != nil {
		ss.resign(o.s)
	} else if err := ss.makeRoom(at.ttl); err != nil {
		return nil, err
	}
	o = &opening{done: make(chan struct{})}
	ss.current[at] = o
	ss.running.Add(1)
	go ss.open(at, o)
	return o, nil
}

// usable reports whether the session can be trusted with another lock. A server that owes
// an answer may be gone; and one ends a session that is idle for long, just when the
// request comes.
func (s *session) usable() bool {
	return !s.resigned && s.ended() == nil && s.silent() < stuckAfter && s.idle() < s.ttl/2
}

// makeRoom sees to it that there may be a session for another lifetime. ss.mu is held.
func (ss *sessions) makeRoom(ttl time.Duration) error {
	ttls := map[time.Duration]bool{ttl: false} // whether there are locks
	for at, o := range ss.current {
		ttls[at.ttl] = ttls[at.ttl] || o.s == nil || len(o.s.held) > 0
	}
	for other, busy := range ttls {
		if len(ttls) <= maxTTLs || busy || other == ttl {
			continue
		}
		delete(ttls, other)
		for at, o := range ss.current {
			if at.ttl == other {
				ss.resign(o.s)
				delete(ss.current, at)
			}
		}
	}
	if len(ttls) > maxTTLs {
		return errManyTTLs
	}
	return nil
}

// open makes a session for a slot.
func (ss *sessions) open(at slot, o *opening) {
	defer ss.running.Done()
	name := sessionName(ss.connector.application(), at.ttl)
	w, err := ss.connector.open(ss.ctx, append(vanish(at.ttl),
		setting{"application_name", name}, setting{"idle_session_timeout", milliseconds(at.ttl)})...)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	defer close(o.done)
	if err != nil {
		o.err = err
		ss.forget(at, o)
		return
	}
	o.s = &session{wire: w, ttl: at.ttl, name: name, held: make(map[int64]*grant)}
	ss.all[o.s] = struct{}{}
	w.onEnd = func(err error) { ss.gone(at, o, err) }
	ss.running.Go(w.run)
	if ss.closed {
		w.close()
	}
}

func (ss *sessions) forget(at slot, o *opening) {
	if ss.current[at] == o {
		delete(ss.current, at)
	}
}

// gone takes note of a session's end, which is that of all its locks.
func (ss *sessions) gone(at slot, o *opening, err error) {
	s := o.s
	ss.mu.Lock()
	delete(ss.all, s)
	ss.forget(at, o)
	lost := s.held
	ss.taken -= len(lost)
	s.held, s.live = nil, 0
	for _, t := range []*time.Timer{s.sweeping, s.open} {
		if t != nil {
			t.Stop()
		}
	}
	ss.mu.Unlock()
	for _, g := range lost {
		ss.report(g.key, g.owner, &locker.LostError{Reason: locker.ReasonSession, Err: err})
	}
	// The holders know. Now the server, too, may give their keys to others.
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.mayHold(len(lost) > 0) && !ss.closed {
		ss.running.Go(func() { ss.connector.bury(ss.ctx, s.wire, s.ttl) })
	} else {
		s.settle(s.over())
	}
}

// claim lets a grant have its number, if nobody of this backend has it.
func (ss *sessions) claim(s *session, g *grant) error {
	if err := ss.connector.young(s.wire); err != nil {
		return err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch {
	case s.held == nil:
		return locker.NoEffect(s.ended())
	case s.held[g.number] != nil:
		return &locker.HeldError{Holder: s.holding().Holder, Remaining: s.ttl}
	case ss.taken >= ss.most:
		return locker.Permanent(fmt.Errorf("pglock: %d locks are held, which is the limit (Config.MaxLocks): "+
			"the server's lock table is shared by all its sessions", ss.taken))
	}
	s.held[g.number] = g
	s.live++
	ss.taken++
	return nil
}

// leave notes that a grant is not to live any longer.
func (ss *sessions) leave(s *session, g *grant) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.leaveLocked(s, g)
	ss.endIfDone(s)
}

func (ss *sessions) leaveLocked(s *session, g *grant) {
	if !g.left {
		g.left = true
		s.live--
	}
}

// drop notes that a grant does not have its number, or that what gives it back is on its
// way, before anything that is sent later. then, if not nil, sends that.
func (ss *sessions) drop(s *session, g *grant, then func()) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.held[g.number] == g { // else the session has ended
		ss.leaveLocked(s, g)
		delete(s.held, g.number)
		ss.taken--
	}
	if then != nil {
		then()
	}
	ss.endIfDone(s)
	ss.sweep(s)
}

// unfinished notes that the session leaves open whether it has given something back.
func (ss *sessions) unfinished(s *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.open == nil && s.ended() == nil {
		// The server ends a session that it has not heard of for so long.
		s.open = time.AfterFunc(s.ttl, func() {
			ss.mu.Lock()
			defer ss.mu.Unlock()
			s.open = nil
			ss.endIfDone(s)
		})
	}
	ss.resign(s)
}

// resign takes a session out of service: for new locks at once, for good with its last
// live one. ss.mu is held.
func (ss *sessions) resign(s *session) {
	s.resigned = true
	ss.endIfDone(s)
}

// endIfDone ends a session that has resigned and serves nobody. As long as it owes an answer,
// its end would not say what became of it. ss.mu is held.
func (ss *sessions) endIfDone(s *session) {
	if s.resigned && s.live == 0 && (s.open == nil || s.silent() == 0) {
		s.close()
	}
}

// sweep ends the session when it has had no locks for some time. The server does so too,
// but only after the session's whole lifetime. ss.mu is held.
func (ss *sessions) sweep(s *session) {
	if s.sweeping != nil || len(s.held) > 0 || s.ttl <= keptFor || s.ended() != nil {
		return
	}
	s.sweeping = time.AfterFunc(keptFor, func() {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		s.sweeping = nil
		if len(s.held) == 0 && s.idle() >= keptFor {
			ss.resign(s)
		} else {
			ss.sweep(s)
		}
	})
}

// holding is what others see of the session.
func (s *session) holding() locker.Holding { return sessionHolding(s.pid, s.name, 0) }

// close ends all sessions and waits for it until ctx ends.
func (ss *sessions) close(ctx context.Context) error {
	ss.cancel()
	ss.mu.Lock()
	ss.closed = true
	for s := range ss.all {
		s.close()
	}
	ss.mu.Unlock()
	return until(ctx, ss.running.Wait, "a session")
}
