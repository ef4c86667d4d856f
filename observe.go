package locker

import (
	"context"
	"time"
)

// EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	EventWaiting       EventKind = "waiting"        // an Acquire has to wait; Err is the *HeldError or the error it waits out, if known
	EventAcquired      EventKind = "acquired"       // a lock was handed out; Wait is the time since the call
	EventRenewed       EventKind = "renewed"        // a renewal succeeded; Held is the time since the grant
	EventRenewalFailed EventKind = "renewal failed" // a renewal failed or was given up; Err says why; the lock is still held
	EventLost          EventKind = "lost"           // a lock was lost; Err is the *LostError
	EventWarning       EventKind = "warning"        // the store is set up so that it may break a promise; Err says how. It is about no single lock
	EventReleased      EventKind = "released"       // a Release has an answer, or none in time; Err is nil if the store confirmed it. None follows EventLost
)

// Event is something that happened to a lock, or EventWarning. Fields that do not
// apply are zero.
type Event struct {
	Kind    EventKind
	Backend string
	Key     string
	Owner   string
	Label   string
	Token   uint64
	Wait    time.Duration // EventAcquired: how long the call took
	Held    time.Duration // EventRenewed, EventLost, EventReleased: time since the grant
	Err     error
}

// warned is what a Warner calls. The Observer may block, and a Warner must not wait
// for it: hence a goroutine, which Close waits for.
func (c *core) warned(err error) {
	c.mu.Lock()
	defer c.unlock()
	if c.deaf {
		return
	}
	c.begin()
	go func() {
		c.notify(Event{Kind: EventWarning, Err: err})
		c.endNow()
	}()
}

// lastWarningsBound is how long Close waits for a look at the store under way.
const lastWarningsBound = 500 * time.Millisecond

// awaitLastWarnings has Close wait for the warnings that are about to come, beside
// all else that it waits for. c.mu is held.
func (c *core) awaitLastWarnings(ctx context.Context) {
	if c.warner == nil {
		return
	}
	c.begin()
	go func() {
		ctx, cancel := context.WithTimeout(ctx, lastWarningsBound)
		defer cancel()
		c.warner.AwaitWarnings(ctx)
		c.mu.Lock()
		c.deaf = true
		c.end()
		c.unlock()
	}()
}

// notify tells the observer. It is called without c.mu.
func (c *core) notify(events ...Event) {
	if c.observer == nil {
		return
	}
	for _, e := range events {
		e.Backend = c.info.Name
		func() {
			// An observer that panics must not take a lock with it.
			defer func() { _ = recover() }()
			c.observer(e)
		}()
	}
}
