package memlock

import (
	"container/list"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// reservation is how long a waiter whose turn came may take to claim the key. In
// one process that takes microseconds; the bound only keeps a stuck one from
// stopping the line.
const reservation = time.Second

// Store is the memory in which locks stand. Lockers that share a Store exclude
// each other, as processes that share a server do. It is safe for concurrent use,
// needs no closing, and keeps nothing of a key that nobody holds or waits for.
type Store struct {
	epoch time.Time

	mu      sync.Mutex
	entries map[string]*entry
	token   uint64 // the last one

	// sweeper removes what its holders left to expire, at sweepAt; 0: it is not set.
	sweeper *time.Timer
	sweepAt instant
}

// instant is a time on the monotonic clock, counted from the Store's making.
type instant = time.Duration

// entry is a key that is held or waited for.
type entry struct {
	key   string
	owner string // of the live or expired grant; empty: none
	label string
	token uint64
	lost  func(key, owner string, err error) // tells the owner's Locker
	ends  instant                            // of the grant, or of the reservation

	queue    list.List // of *place
	reserved *place    // the first of the queue: the key is kept for it until ends
	timer    *time.Timer

	first grant // saves an allocation; see take
}

// NewStore returns an empty Store. Tokens start at the wall clock's microseconds,
// so that a process that was restarted does not repeat its predecessor's.
func NewStore() *Store {
	now := time.Now()
	return &Store{epoch: now, entries: make(map[string]*entry), token: uint64(now.UnixMicro())}
}

func (s *Store) now() instant { return time.Since(s.epoch) }

// Len is the number of keys that are held or waited for.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExpired()
	return len(s.entries)
}

// Keys lists the keys that are held or waited for, in no order.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExpired()
	keys := make([]string, 0, len(s.entries))
	for key := range s.entries {
		keys = append(keys, key)
	}
	return keys
}

// entry returns the key's entry as it is now, or makes one.
func (s *Store) entry(key string) *entry {
	e := s.entries[key]
	if e != nil {
		s.settle(e, s.now())
		e = s.entries[key]
	}
	if e == nil {
		e = &entry{key: key}
		s.entries[key] = e
	}
	return e
}

// holding shows an entry as it is now, if somebody holds it.
func (s *Store) holding(e *entry) (h locker.Holding, held bool) {
	now := s.now()
	if s.settle(e, now); e.owner == "" {
		return locker.Holding{}, false
	}
	he := e.held(now)
	return locker.Holding{Holder: he.Holder, Remaining: he.Remaining, Token: e.token}, true
}

// apart runs f without the mutex, which the caller has.
func (s *Store) apart(f func() bool) bool {
	s.mu.Unlock()
	defer s.mu.Lock()
	return f()
}

// take gives the key to a request. The entry is free or reserved for it.
func (s *Store) take(e *entry, req locker.Request, lost func(string, string, error)) *grant {
	s.token++
	now := s.now()
	e.owner, e.label, e.token, e.lost = req.Owner, req.Label, s.token, lost
	e.ends = now + req.TTL
	if e.queue.Len() > 0 {
		s.setTimer(e)
	} else {
		s.sweepBy(e.ends)
	}
	g := &e.first
	if g.store != nil {
		g = new(grant) // the entry is not new: it had waiters
	}
	*g = grant{store: s, key: req.Key, owner: req.Owner, token: s.token, ttl: req.TTL, since: s.epoch.Add(now)}
	return g
}

// free ends the grant on the entry.
func (s *Store) free(e *entry, now instant) {
	e.owner, e.lost = "", nil
	s.settle(e, now)
}

// settle brings an entry up to date: it ends what has expired, gives the key to
// the first of the queue, and removes an entry that nobody needs.
func (s *Store) settle(e *entry, now instant) {
	if e.owner != "" && now >= e.ends {
		e.owner, e.lost = "", nil
	}
	if e.reserved != nil && now >= e.ends {
		e.remove(e.reserved)
	}
	if e.owner != "" || e.reserved != nil {
		return
	}
	front := e.queue.Front()
	if front == nil {
		if e.timer != nil {
			e.timer.Stop()
		}
		delete(s.entries, e.key)
		return
	}
	e.reserved = front.Value.(*place)
	e.ends = now + reservation
	e.reserved.signal()
	s.setTimer(e)
}

// setTimer makes sure that settle runs when the entry's time ends. Only an entry
// that somebody waits for has a timer.
func (s *Store) setTimer(e *entry) {
	d := max(e.ends-s.now(), 0)
	if e.timer != nil {
		e.timer.Reset(d)
		return
	}
	e.timer = time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.entries[e.key] != e {
			return
		}
		s.settle(e, s.now())
		if s.entries[e.key] == e && s.now() < e.ends {
			s.setTimer(e)
		}
	})
}

// sweepBy makes sure that sweep runs at the latest then.
func (s *Store) sweepBy(at instant) {
	if s.sweepAt != 0 && s.sweepAt <= at {
		return
	}
	s.sweepAt = at
	d := max(at-s.now(), 0)
	if s.sweeper == nil {
		s.sweeper = time.AfterFunc(d, s.sweep)
	} else {
		s.sweeper.Reset(d)
	}
}

// sweep removes what its holders left to expire, and comes again while there is
// something that may.
func (s *Store) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepAt = 0
	s.removeExpired()
	const often = 100 * time.Millisecond // looking at all entries costs something
	next := never
	for _, e := range s.entries {
		next = min(next, e.ends)
	}
	if next != never {
		s.sweepBy(max(next, s.now()+often))
	}
}

const never = instant(1<<63 - 1)

func (s *Store) removeExpired() {
	now := s.now()
	for _, e := range s.entries {
		s.settle(e, now)
	}
}
