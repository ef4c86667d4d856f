package locker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
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

// maxRenewalsPerTTL bounds how often a renewal is tried in one TTL. Slices of what remains
// would never get to its end.
const maxRenewalsPerTTL = 50

// maxInFlight bounds the renewals of one lock that are under way when the store does
// not answer and the driver cannot be interrupted.
const maxInFlight = 2

// errSlow: an attempt took longer than its slice of the remaining time.
var errSlow = errors.New("locker: no answer to the renewal yet")

// due is one hold's part of a renewal.
type due struct {
	h       *hold
	attempt uint64
	slice   time.Duration // what the attempt may take
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
	// The observer hears of it when all answers are counted: he cannot hold them up.
	var (
		mu   sync.Mutex
		news []later
	)
	answer := func(i int, lease Lease, err error) {
		l := c.renewed(batch[i], s, lease, err)
		mu.Lock()
		news = append(news, l)
		mu.Unlock()
	}
	defer func() {
		for _, l := range news {
			c.do(l)
		}
	}()
	if c.batch != nil {
		c.batch.RenewAll(ctx, renewals, answer)
		return
	}
	done := make(chan struct{}, len(batch))
	one := func(i int) {
		lease, err := renewals[i].Grant.Renew(ctx, renewals[i].TTL)
		answer(i, lease, err)
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

// renewed counts the answer to a renewal.
func (c *core) renewed(d due, s stamp, lease Lease, err error) later {
	c.mu.Lock()
	c.countRenewal(d, s, lease, err)
	return c.unlockFirst()
}

func (c *core) countRenewal(d due, s stamp, lease Lease, err error) {
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
