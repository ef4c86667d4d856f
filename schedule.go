package locker

import (
	"container/heap"
	"time"

	"github.com/go-locker/locker/internal/suspend"
)

// A schedule of one timer serves all holds of a Locker: plan is a heap by each hold's
// next event, the timer is set to the first one. There is no goroutine or timer for a
// hold, and none at all while nothing is due.

// planned is a hold's place in the plan.
type planned struct {
	next  instant
	index int // in the heap, from 1; 0: not in it
}

// plan implements heap.Interface.
type plan []*hold

func (p plan) Len() int { return len(p) }

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

// tick handles what is due: losses first, then renewals, all those that are due
// about now together.
func (c *core) tick() {
	c.mu.Lock()
	c.armed = 0
	if slept := c.asleep(); slept-c.slept > suspend.Jitter {
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
			c.endNow()
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

const never = instant(1<<63 - 1)
