package pglock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// solos are sessions that serve one grant, or one waiter, at a time.
type solos struct {
	connector *connector
	report    func(key, owner string, err error)

	ctx     context.Context // ends with the backend
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	spare   []*solo             // idle, the latest last
	all     map[*solo]struct{}  // that have not ended
	places  map[*place]struct{} // that wait
	lookout bool                // somebody looks after them
	closed  bool
}

// solo is such a session.
type solo struct {
	*wire
	spared bool // it was idle for a time

	// Guarded by solos.mu.
	grant    *soloGrant    // nil: none that can be lost
	ttl      time.Duration // of the latest one, until it is given back; or 0
	stranded bool          // given up before there was an answer: so nobody has lost anything
}

const (
	// maxSpare is how many idle sessions are kept, and spareFor how long: the server ends
	// them then.
	maxSpare = 4
	spareFor = time.Minute

	// reservation is how long the server waits for a waiter whose turn has come to claim
	// its lock.
	reservation = 2 * time.Second
)

func newSolos(c *connector) *solos {
	ss := &solos{connector: c, report: func(string, string, error) {}, all: make(map[*solo]struct{}), places: make(map[*place]struct{})}
	ss.ctx, ss.cancel = context.WithCancel(context.Background())
	return ss
}

// borrow returns an idle session. It blocks until one is made, or ctx ends: nothing is
// taken then.
func (ss *solos) borrow(ctx context.Context) (*solo, error) {
	ss.mu.Lock()
	for len(ss.spare) > 0 {
		s := ss.spare[len(ss.spare)-1]
		ss.spare = ss.spare[:len(ss.spare)-1]
		if s.ended() == nil && s.idle() < spareFor/2 {
			s.spared = true
			ss.mu.Unlock()
			return s, nil
		}
		s.close()
	}
	if ss.closed {
		ss.mu.Unlock()
		return nil, locker.Permanent(locker.ErrClosed)
	}
	ss.running.Add(1)
	ss.mu.Unlock()
	type result struct {
		s   *solo
		err error
	}
	made := make(chan result, 1)
	go func() {
		defer ss.running.Done()
		s, err := ss.open()
		made <- result{s, err}
	}()
	select {
	case r := <-made:
		return r.s, r.err
	case <-ctx.Done():
		go func() {
			if r := <-made; r.err == nil {
				ss.giveBack(r.s)
			}
		}()
		return nil, locker.NoEffect(ctx.Err())
	}
}

func (ss *solos) open() (*solo, error) {
	w, err := ss.connector.open(ss.ctx, append(vanish(reservation), setting{"idle_session_timeout", milliseconds(spareFor)})...)
	if err != nil {
		return nil, err
	}
	s := &solo{wire: w}
	w.onEnd = func(err error) { ss.gone(s, err) }
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.all[s] = struct{}{}
	ss.running.Go(w.run)
	if ss.closed {
		w.close()
		return nil, locker.Permanent(locker.ErrClosed)
	}
	return s, nil
}

// giveBack returns a session that is outside of a transaction.
func (ss *solos) giveBack(s *solo) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s.ttl = 0
	if ss.closed || len(ss.spare) >= maxSpare || s.ended() != nil {
		s.close()
		return
	}
	ss.spare = append(ss.spare, s)
}

// errStranded: an idle session did not answer. It is given up, and with it what it has begun.
var errStranded = locker.NoEffect(errors.New("pglock: an idle session has lost its server"))

// strandedAfter is when an idle session counts as one that has lost its server.
const strandedAfter = 2 * time.Second

// await waits for an answer. If the session has been idle, it may have lost its server
// meanwhile, as the other idle ones will have: then a new session has an answer sooner.
func (ss *solos) await(ctx context.Context, s *solo, spared bool, c *call) (answered bool, err error) {
	if !spared {
		return c.wait(ctx), nil
	}
	brief, cancel := context.WithTimeout(ctx, strandedAfter)
	defer cancel()
	if answered = c.wait(brief); answered || ctx.Err() != nil {
		return answered, nil
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, other := range ss.spare {
		other.close()
	}
	ss.spare = nil
	s.stranded = true
	s.close()
	return false, errStranded
}

// ask uses any session for one call that newCall makes.
func (ss *solos) ask(ctx context.Context, newCall func() *call) (*call, error) {
	for {
		s, err := ss.borrow(ctx)
		if err != nil {
			return nil, err
		}
		c := newCall()
		c.then = func() { ss.giveBack(s) }
		spared := s.spared // the next one may have the session before we see the answer
		s.start(c)
		switch answered, err := ss.await(ctx, s, spared, c); {
		case err != nil:
		case !answered:
			return nil, ctx.Err()
		default:
			return c, c.err
		}
	}
}

// hold notes that the session's end is the loss of g; nil: of nothing.
func (ss *solos) hold(s *solo, g *soloGrant) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.grant = g; g != nil {
		s.ttl = g.ttl
	}
}

// gone takes note of a session's end.
func (ss *solos) gone(s *solo, err error) {
	ss.mu.Lock()
	delete(ss.all, s)
	g, stranded := s.grant, s.stranded
	s.grant = nil
	ss.mu.Unlock()
	if g != nil && !stranded { // else the same request may have its lock on another session by now
		ss.report(g.key, g.owner, &locker.LostError{Reason: locker.ReasonSession, Err: err})
	}
	// The holder knows. Now the server, too, may give the key to others.
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.ttl > 0 && !s.over() && !ss.closed {
		ss.running.Go(func() { ss.connector.bury(ss.ctx, s.wire, s.ttl) })
	} else {
		s.settle(s.over())
	}
}

// close ends all sessions and waits for it until ctx ends.
func (ss *solos) close(ctx context.Context) error {
	ss.cancel()
	ss.mu.Lock()
	ss.closed, ss.spare = true, nil
	for s := range ss.all {
		s.close()
	}
	ss.mu.Unlock()
	return until(ctx, ss.running.Wait, "a session")
}

// soloGrant is a lock on a session of its own. Its since is zero if it was claimed, and its
// taking has the lock if it has a row.
type soloGrant struct {
	sessionGrant
	ss *solos
	s  *solo

	give func() []*call // makes the calls that give it back; the last one's answer counts
	drop func() []*call // those that end a taking that has failed
}

// Release implements locker.Grant. What it sends stays on its way when ctx ends; a
// repetition waits for its answer.
func (g *soloGrant) Release(ctx context.Context) error {
	if !g.taking.wait(ctx) {
		return ctx.Err()
	}
	got := g.taking.err == nil && len(g.taking.rows) > 0
	g.mu.Lock()
	if g.giving == nil {
		g.ss.hold(g.s, nil)
		calls := g.drop
		if got {
			calls = g.give
		}
		all := calls()
		last := all[len(all)-1]
		last.then = func() {
			if last.err == nil {
				g.ss.giveBack(g.s)
			} else {
				g.s.close()
			}
		}
		g.giving = last
		g.s.start(all...)
	}
	g.mu.Unlock()
	if !g.giving.wait(ctx) {
		return ctx.Err()
	}
	switch {
	case !got && g.s.ended() == nil:
		return nil // nothing was taken
	case !got:
		return g.afterEnd(ctx, g.s.ended())
	case g.s.ended() == nil:
		return nil // a transaction whose commit fails is over too
	}
	return g.afterEnd(ctx, g.giving.err)
}
