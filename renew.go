package locker

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"
)

// renewal is the state of a hold's renewal.
type renewal struct {
	at       instant // when the next attempt is due, or the one under way is given up
	running  bool    // an attempt is under way and counts
	attempt  uint64  // its number; an answer with another number is late
	inFlight int     // attempts that the backend has not answered, late ones too
	failures backoff
	lastErr  error
	quiet    chan struct{} // closed when no attempt is in flight; see Release
}

// abandon makes the answer of the attempt under way a late one.
func (r *renewal) abandon() {
	r.attempt++
	r.running = false
}

const never = instant(1<<63 - 1)

// maxRenewalsPerTTL bounds how often a renewal is tried in one TTL. Slices of what remains
// would never get to its end.
const maxRenewalsPerTTL = 50

// errSlow: an attempt took longer than its slice of the remaining time.
var errSlow = errors.New("locker: no answer to the renewal yet")

// A scheduler of one timer serves all holds of a Locker: plan is a heap by each
// hold's next event, the timer is set to the first one. There is no goroutine or
// timer for a hold, and none at all while nothing is due.

// planned is a hold's place in the plan.
type planned struct {
	next  instant
	index int // in the heap, from 1; 0: not in it
}

// plan implements heap.Interface.
type plan []*hold

func (p plan) Len() int           { return len(p) }
func (p plan) Less(i, j int) bool { return p[i].plan.next < p[j].plan.next }
func (p plan) Swap(i, j int) {
	p[i], p[j] = p[j], p[i]
	p[i].plan.index, p[j].plan.index = i+1, j+1
}

func (p *plan) Push(x any) {
	h := x.(*hold)
	*p = append(*p, h)
	h.plan.index = len(*p)
}

func (p *plan) Pop() any {
	old := *p
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*p = old[:len(old)-1]
	h.plan.index = 0
	return h
}

func (h *hold) nextEvent() instant { return min(h.deadline(), h.renewal.at) }

// schedule puts the hold's next event into the plan. c.mu is held.
func (c *core) schedule(h *hold) {
	h.plan.next = h.nextEvent()
	if h.plan.index == 0 {
		heap.Push(&c.plan, h)
	} else {
		heap.Fix(&c.plan, h.plan.index-1)
	}
	c.arm()
}

func (c *core) unschedule(h *hold) {
	if h.plan.index > 0 {
		heap.Remove(&c.plan, h.plan.index-1)
	}
	// The timer stays as it is: one tick too many is cheaper than setting it at
	// every release. Close stops it.
}

// maxRest is how long the timer rests at most while there are holds on a remote
// store: after a suspend of the machine the deadlines are nearer than it thinks.
const maxRest = time.Second

// arm sets the timer for the first event, if it is not set for an earlier one.
func (c *core) arm() {
	if len(c.plan) == 0 {
		return
	}
	at := c.plan[0].plan.next
	if c.armed != 0 && c.armed <= at {
		return
	}
	now := c.now()
	if !c.info.Local {
		if at = min(at, now+maxRest); c.armed != 0 && c.armed <= at {
			return
		}
	}
	c.armed = at
	d := max(at-now, 0)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.tick)
	} else {
		c.timer.Reset(d)
	}
}

// due is one hold's part of a renewal.
type due struct {
	h       *hold
	attempt uint64
	slice   time.Duration // what the attempt may take
}

// tick handles what is due: losses first, then renewals, all those that are due
// about now together.
func (c *core) tick() {
	c.mu.Lock()
	c.armed = 0
	if slept := c.asleep(); slept-c.slept > sleepJitter {
		c.slept = slept
		for _, h := range c.plan {
			h.countSleep(slept)
			h.plan.next = h.nextEvent()
		}
		heap.Init(&c.plan)
	}
	now := c.now()
	var batch []due
	var soon time.Duration
	for len(c.plan) > 0 && c.plan[0].plan.next <= now {
		h := c.plan[0]
		if c.checkClock(h); h.err == nil {
			batch = c.collect(h, now, batch)
			soon = max(soon, h.ttl/6)
			heap.Fix(&c.plan, 0)
		}
	}
	if len(batch) > 0 {
		// Whoever is due soon comes along: so holds with one TTL end up together.
		for _, h := range c.plan.until(now+soon, 0, nil) {
			if !h.renewal.running && h.renewal.at <= now+h.ttl/6 {
				batch = c.collect(h, now, batch)
				heap.Fix(&c.plan, h.plan.index-1)
			}
		}
	}
	c.arm()
	// Sent before the observer hears anything: he cannot hold up a renewal.
	s := c.stamp()
	for _, group := range bySlice(batch) {
		c.begin()
		go func() {
			c.renew(group, s)
			c.mu.Lock()
			c.end()
			c.unlock()
		}()
	}
	c.unlock()
}

// until appends the holds whose next event is not after limit, from heap index i
// downwards.
func (p plan) until(limit instant, i int, found []*hold) []*hold {
	if i >= len(p) || p[i].plan.next > limit {
		return found
	}
	found = append(found, p[i])
	found = p.until(limit, 2*i+1, found)
	return p.until(limit, 2*i+2, found)
}

// collect adds a hold whose renewal is due to the batch. An attempt under way has
// used up its slice: it is given up, and its answer will be late.
func (c *core) collect(h *hold, now instant, batch []due) []due {
	r := &h.renewal
	if r.running {
		r.abandon()
		r.lastErr = errSlow
		if c.observer != nil {
			c.emit(h.event(EventRenewalFailed, errSlow))
		}
	}
	if r.inFlight >= maxInFlight {
		r.at = never // the next answer sets it
	} else {
		slice := max((h.deadline()-now)/3, h.ttl/maxRenewalsPerTTL)
		r.running, r.at = true, now+slice
		r.attempt++
		r.inFlight++
		batch = append(batch, due{h, r.attempt, slice})
	}
	h.plan.next = h.nextEvent()
	return batch
}

// bySlice divides a batch, so that the short time of some does not end the
// requests of others that have much more.
func bySlice(batch []due) (groups [][]due) {
	slices.SortFunc(batch, func(a, b due) int { return cmp.Compare(a.slice, b.slice) })
	for len(batch) > 0 {
		n := 1
		for n < len(batch) && batch[n].slice <= 4*batch[0].slice {
			n++
		}
		groups = append(groups, batch[:n:n])
		batch = batch[n:]
	}
	return groups
}

// renew sends one batch, ordered by slice. It may take longer than that if the
// driver does not come back; nothing waits for it.
func (c *core) renew(batch []due, s stamp) {
	ctx, cancel := context.WithTimeout(c.ctx, max(batch[0].slice, time.Millisecond))
	defer cancel()
	renewals := make([]Renewal, len(batch))
	c.mu.Lock()
	for i, d := range batch {
		renewals[i] = Renewal{Grant: d.h.grant, TTL: d.h.ttl}
	}
	c.mu.Unlock()
	if c.batch != nil {
		c.batch.RenewAll(ctx, renewals, func(i int, lease Lease, err error) {
			c.renewed(batch[i], s, lease, err)
		})
		return
	}
	done := make(chan struct{}, len(batch))
	one := func(i int) {
		lease, err := renewals[i].Grant.Renew(ctx, renewals[i].TTL)
		c.renewed(batch[i], s, lease, err)
		done <- struct{}{}
	}
	for i := range batch {
		if c.info.Local {
			one(i)
		} else {
			go one(i)
		}
	}
	for range batch {
		<-done
	}
}

// renewed counts the answer to a renewal. It leaves the events to the end of the
// batch, so that an observer cannot hold up the other answers.
func (c *core) renewed(d due, s stamp, lease Lease, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, r := d.h, &d.h.renewal
	r.inFlight--
	if r.inFlight == 0 && r.quiet != nil {
		close(r.quiet)
		r.quiet = nil
	}
	c.checkClock(h)
	if h.err != nil {
		return
	}
	now := c.now()
	if d.attempt != r.attempt {
		// Late: ignored. But if the next attempt waited for it, it is due.
		if r.at == never && h.renews {
			r.at = now
			c.schedule(h)
		}
		return
	}
	r.running = false
	switch {
	case err == nil:
		r.failures.reset()
		r.lastErr = nil
		end, slept := h.end, h.slept
		h.count(lease, s)
		if h.end < end {
			h.end, h.slept = end, slept // a renewal does not shorten
		}
		if c.observer != nil {
			c.emit(h.event(EventRenewed, nil))
		}
	case errors.Is(err, ErrLost):
		c.lose(h, lostError(err))
		return
	default:
		r.lastErr = err
		r.at = now + max(min(r.failures.next(), (h.deadline()-now)/4), h.ttl/maxRenewalsPerTTL)
		if c.observer != nil {
			c.emit(h.event(EventRenewalFailed, err))
		}
	}
	c.schedule(h)
	c.checkClock(h)
}
