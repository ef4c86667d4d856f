package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
)

// clientsPerProcess share one Locker.
const clientsPerProcess = 2

// role is what one process of a history has to do.
type role struct {
	Process     int // from 1
	Seed        uint64
	Keys        []string
	TTL, Length time.Duration
}

// What a note is about.
const (
	noteAsk     = "ask"     // an acquire is called; Until is the end of its context
	noteGot     = "got"     // it has returned a lock
	noteRefused = "refused" // it has returned an error; Held tells which kind
	noteAlive   = "alive"   // the lock's Err was nil, asked just after At
	noteLost    = "lost"    // it was not; after the end of a session At is when its Done was closed
	noteRelease = "release" // Release is called
	noteRead    = "read"    // the key's register is read; answered by a ruling
	noteWrite   = "write"   // it is written; answered by a ruling
	noteBroken  = "broken"  // Text: the client itself saw the contract broken
)

// note is one line of a history.
type note struct {
	Process, Client int
	Attempt         int // of its client: names the acquire and its lock
	What            string
	At              time.Duration // by the clock
	Key             string

	Until    time.Duration `json:",omitempty"`
	Owner    string        `json:",omitempty"` // of the lock, or of the one in its way
	Token    uint64        `json:",omitempty"`
	Deadline time.Duration `json:",omitempty"` // by the clock
	Held     bool          `json:",omitempty"`
	Session  bool          `json:",omitempty"` // the store's session has ended
	Text     string        `json:",omitempty"`
	Value    int           `json:",omitempty"` // to write
	Loose    int           `json:",omitempty"` // to write without the fence
}

// ruling is a register's answer to a read or a write.
type ruling struct {
	Client       int
	OK           bool // the token was not too old
	Value, Loose int
}

// stage is where clients play: what they do is told to tell, and what they ask of
// a register is answered.
type stage struct {
	now  clock
	tell func(note)

	mu      sync.Mutex
	rulings map[int]chan ruling // by client
}

func newStage(now clock, tell func(note)) *stage {
	return &stage{now: now, tell: tell, rulings: make(map[int]chan ruling)}
}

// rule hands out an answer.
func (s *stage) rule(r ruling) { s.answers(r.Client) <- r }

func (s *stage) answers(client int) chan ruling {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rulings[client] == nil {
		s.rulings[client] = make(chan ruling, 1)
	}
	return s.rulings[client]
}

// play runs the clients of a process until each of them was served once more after
// the end.
func (s *stage) play(ctx context.Context, l locker.Locker, r role) {
	end := s.now() + r.Length
	var clients sync.WaitGroup
	for n := range clientsPerProcess {
		c := &player{
			stage: s, role: r, l: l, n: n,
			rng: rand.New(rand.NewPCG(r.Seed, uint64(r.Process*clientsPerProcess+n))),
		}
		clients.Go(func() {
			for s.now() < end && ctx.Err() == nil {
				c.round(ctx)
			}
			c.last(ctx)
		})
	}
	clients.Wait()
}

// player is one client.
type player struct {
	*stage
	role
	l        locker.Locker
	n        int
	rng      *rand.Rand
	attempts atomic.Int64
}

// upTo is a random part of most TTLs.
func (c *player) upTo(most float64) time.Duration {
	return time.Duration(c.rng.Float64() * most * float64(c.TTL))
}

func (c *player) say(n note) {
	n.Process, n.Client = c.Process, c.n
	if n.At == 0 {
		n.At = c.now()
	}
	c.tell(n)
}

// round acquires, works and releases.
func (c *player) round(ctx context.Context) {
	acquire := c.l.Acquire
	if c.rng.IntN(10) < 4 {
		acquire = c.l.TryAcquire
	}
	opts := []locker.Option{locker.WithTTL(c.TTL)}
	work := c.upTo(0.4)
	if c.rng.IntN(3) == 0 {
		work = c.upTo(2)
	}
	toTheEnd := false // of the lease, where others wait for it
	if c.rng.IntN(4) == 0 {
		opts = append(opts, locker.WithoutRenewal())
		if toTheEnd = c.rng.IntN(2) == 0; toTheEnd {
			work = 3 * c.TTL
		}
	}
	k, n := c.acquire(ctx, acquire, c.Keys[c.rng.IntN(len(c.Keys))], c.TTL/10+c.upTo(2.5), opts...)
	if k == nil {
		pause(ctx, c.upTo(0.1))
		return
	}
	c.work(ctx, k, n, work, !toTheEnd)
	c.release(ctx, k, n)
}

// last takes each key once more, with patience.
func (c *player) last(ctx context.Context) {
	for _, key := range c.Keys {
		k, n := c.acquire(ctx, c.l.Acquire, key, 30*time.Second+10*c.TTL, locker.WithTTL(c.TTL))
		if k == nil {
			if ctx.Err() == nil {
				c.say(note{Attempt: n, What: noteBroken, Key: key, Text: "not served, though nothing breaks any more"})
			}
			continue
		}
		c.release(ctx, k, n)
	}
}

func (c *player) acquire(ctx context.Context,
	acquire func(context.Context, string, ...locker.Option) (locker.Lock, error),
	key string, limit time.Duration, opts ...locker.Option,
) (locker.Lock, int) {
	n := int(c.attempts.Add(1))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	asked := c.now()
	c.say(note{Attempt: n, What: noteAsk, At: asked, Until: asked + limit, Key: key})
	k, err := acquire(ctx, key, opts...)
	at := c.now()
	if (k == nil) == (err == nil) {
		c.say(note{Attempt: n, What: noteBroken, Key: key, Text: "neither a lock nor an error, or both"})
	}
	if err != nil {
		refused := note{Attempt: n, What: noteRefused, At: at, Key: key, Held: errors.Is(err, locker.ErrHeld)}
		if held, ok := errors.AsType[*locker.HeldError](err); ok {
			refused.Owner = held.Holder
		}
		c.say(refused)
		return nil, n
	}
	c.say(note{Attempt: n, What: noteGot, At: at, Key: key, Owner: k.Owner(), Token: k.Token(), Deadline: c.now.of(k.Deadline())})
	return k, n
}

// work updates the key's register again and again. It looks at the lock before each
// read, and not between the read and the write, as programs do.
func (c *player) work(ctx context.Context, k locker.Lock, n int, length time.Duration, extends bool) {
	var lostAt atomic.Int64 // between two looks
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-k.Done():
			lostAt.Store(int64(c.now()))
		case <-over:
		}
	}()
	for end := c.now() + length; c.now() < end && ctx.Err() == nil; pause(ctx, c.TTL/100+c.upTo(0.05)) {
		at := c.now()
		if err := k.Err(); err != nil {
			lost := note{Attempt: n, What: noteLost, At: c.now(), Key: k.Key(), Deadline: c.now.of(k.Deadline())}
			if e, ok := errors.AsType[*locker.LostError](err); ok {
				lost.Session = e.Reason == locker.ReasonSession
				lost.Text = string(e.Reason)
			}
			if told := time.Duration(lostAt.Load()); lost.Session && told != 0 {
				lost.At = told
			}
			c.say(lost)
			return
		}
		c.say(note{Attempt: n, What: noteAlive, At: at, Key: k.Key(), Deadline: c.now.of(k.Deadline())})

		seen, ok := c.ask(ctx, note{Attempt: n, What: noteRead, Key: k.Key(), Token: k.Token()})
		if !ok {
			pause(ctx, c.TTL/100) // a lock whose tokens do not rise could be had again and again in no time
			return
		}
		pause(ctx, c.upTo(0.02))
		c.ask(ctx, note{Attempt: n, What: noteWrite, Key: k.Key(), Token: k.Token(), Value: seen.Value + 1, Loose: seen.Loose + 1})

		if extends && c.rng.IntN(10) == 0 {
			bounded, cancel := context.WithTimeout(ctx, c.TTL/2)
			err := k.Extend(bounded, c.TTL/3+c.upTo(2./3))
			cancel()
			if errors.Is(err, locker.ErrLost) && !errors.Is(k.Err(), locker.ErrLost) {
				c.say(note{Attempt: n, What: noteBroken, Key: k.Key(), Text: fmt.Sprintf("Extend says lost, and Err says: %v", k.Err())})
			}
		}
	}
}

// ask asks the register.
func (c *player) ask(ctx context.Context, n note) (ruling, bool) {
	c.say(n)
	select {
	case r := <-c.answers(c.n):
		return r, r.OK
	case <-ctx.Done():
		return ruling{}, false
	}
}

func (c *player) release(ctx context.Context, k locker.Lock, n int) {
	bounded, cancel := context.WithTimeout(ctx, 2*c.TTL)
	defer cancel()
	at := c.now()
	c.say(note{Attempt: n, What: noteRelease, At: at, Key: k.Key(), Deadline: c.now.of(k.Deadline())})
	// The claim is over whatever it says; the next acquires tell whether it was done. But it
	// may say that the session had ended already.
	if e, ok := errors.AsType[*locker.LostError](k.Release(bounded)); ok && e.Reason == locker.ReasonSession {
		c.say(note{Attempt: n, What: noteLost, At: at, Key: k.Key(), Session: true, Text: string(e.Reason)})
	}
}

// pause lets d pass, or ends with ctx.
func pause(ctx context.Context, d time.Duration) { within(ctx.Done(), d) }
