package pglock

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

//go:embed place_waiting.sql
var waitingSQL string

var cmdWaiting = command{name: "waiting", sql: text(waitingSQL)}

// place implements locker.Place by a session whose statement waits for the lock. It has
// it then, but ends soon if nobody claims it.
type place struct {
	ss   *solos
	g    *soloGrant
	turn chan struct{}

	wait    func() []*call // the calls that get in line, the last of which has the lock if it has a row
	again   func() []*call // those that come before, if it has none
	claim   func(ctx context.Context) (locker.Grant, error)
	refusal func(ctx context.Context) error

	mu   sync.Mutex
	over bool // it was claimed, or left

	absent bool // at the latest look of the lookout, which has it for its own
}

// enqueue gets a place in line.
func (ss *solos) enqueue(p *place) *place {
	p.ss, p.turn = ss, make(chan struct{}, 1)
	p.start(nil)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.places[p] = struct{}{}
	if !ss.lookout && !ss.closed {
		ss.lookout = true
		ss.running.Add(1)
		go ss.look()
	}
	return p
}

func (p *place) start(before []*call) {
	calls := slices.Concat(before, p.wait())
	p.g.taking = calls[len(calls)-1]
	p.g.taking.then = func() {
		select {
		case p.turn <- struct{}{}:
		default:
		}
	}
	p.g.s.start(calls...)
}

// Turn implements locker.Place.
func (p *place) Turn() <-chan struct{} { return p.turn }

// Claim implements locker.Place.
func (p *place) Claim(ctx context.Context) (locker.Grant, error) {
	switch mine, err := p.claimed(); {
	case err != nil:
		return nil, locker.NoEffect(failed(err)) // the place is given up then
	case !mine:
		return nil, p.refusal(ctx)
	}
	return p.claim(ctx)
}

// claimed makes the reservation the grant's, if there is one.
func (p *place) claimed() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false, errors.New("pglock: the place was given up")
	}
	select {
	case <-p.g.taking.done:
	default:
		return false, nil
	}
	switch {
	case p.g.taking.err != nil:
		return false, p.g.taking.err
	case len(p.g.taking.rows) == 0:
		p.start(p.again())
		return false, nil
	}
	p.over = true
	p.ss.hold(p.g.s, p.g)
	p.ss.forget(p)
	return true, nil
}

// Leave implements locker.Place.
func (p *place) Leave(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.over = true
		p.g.s.close()
		p.ss.forget(p)
	}
	return nil
}

func (ss *solos) forget(p *place) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.places, p)
}

// look asks, as long as somebody waits, whether the server still sees the ones who wait.
// A session that waits says nothing, nor does one that has lost its server.
func (ss *solos) look() {
	defer ss.running.Done()
	for {
		t := time.NewTimer(beat - rand.N(beat/4))
		select {
		case <-t.C:
		case <-ss.ctx.Done():
			t.Stop()
		}
		ss.mu.Lock()
		if len(ss.places) == 0 || ss.closed {
			ss.lookout = false
			ss.mu.Unlock()
			return
		}
		waiting := make(map[string]*place)
		for p := range ss.places {
			waiting[p.g.s.pid] = p
		}
		ss.mu.Unlock()
		ss.lookAfter(waiting)
	}
}

// lookAfter ends the sessions that the server has not seen waiting for two looks, but
// that have not heard from it.
func (ss *solos) lookAfter(waiting map[string]*place) {
	ctx, cancel := context.WithTimeout(ss.ctx, answerBound)
	defer cancel()
	pids := slices.Collect(maps.Keys(waiting))
	c, err := ss.ask(ctx, func() *call { return newCallWith(&cmdWaiting, "{"+strings.Join(pids, ",")+"}") })
	if err != nil {
		return
	}
	for _, row := range c.rows {
		waiting[string(row[0])].absent = false
		delete(waiting, string(row[0]))
	}
	for _, p := range waiting {
		p.mu.Lock()
		select {
		case <-p.g.taking.done: // it knows
		default:
			if p.absent {
				p.g.s.close()
			}
			p.absent = true
		}
		p.mu.Unlock()
	}
}
