package locker

import (
	"context"
	"time"

	"github.com/go-locker/locker/internal/suspend"
)

// stamp is the moment before a request is sent: what a lease is counted from.
type stamp struct {
	at    instant
	slept time.Duration
}

func (c *core) stamp() stamp { return stamp{at: c.now(), slept: c.asleep()} }

// margin is how much earlier than the store a holder stops: time for the loss to
// be seen, and for clocks that do not run alike.
func margin(ttl time.Duration) time.Duration {
	return min(max(ttl/20, 5*time.Millisecond), 250*time.Millisecond, ttl/4)
}

// count sets end by a lease that the store confirmed in answer to a request sent
// at s.
func (h *hold) count(lease Lease, s stamp) {
	if !lease.Since.IsZero() {
		s.at = lease.Since.Sub(h.c.epoch)
	}
	ttl := lease.TTL
	if ttl <= 0 {
		ttl = h.ttl
	}
	if h.cap > 0 {
		ttl = min(ttl, h.cap)
	}
	h.ttl = ttl
	h.end, h.slept = s.at+ttl-margin(ttl), s.slept
	if h.renews {
		h.renewal.at = s.at + ttl/3
	} else {
		h.renewal.at = never
	}
}

// shorten counts a lease only if it ends earlier than what is counted already.
func (h *hold) shorten(lease Lease, s stamp) {
	end, slept := h.end, h.slept
	h.count(lease, s)
	if end < h.end {
		h.end, h.slept = end, slept
	}
}

// countSleep takes off what the machine has slept since end was set. The clock stood
// still, and the store's did not.
func (h *hold) countSleep(slept time.Duration) {
	if grown := slept - h.slept; grown > suspend.Jitter {
		h.end -= grown
		h.slept = slept
		if h.renewal.at != never {
			h.renewal.at -= grown
		}
	}
}

// deadline is when the hold ends unless it is renewed.
func (h *hold) deadline() instant {
	if h.maxAt > 0 {
		return min(h.end, h.maxAt)
	}
	return h.end
}

// storeEnd is when the store lets the key go by itself, or a little earlier.
func (h *hold) storeEnd() instant { return h.end + margin(h.ttl) }

// checkClock ends the hold if its time is over.
func (c *core) checkClock(h *hold) {
	if h.err != nil {
		return
	}
	h.countSleep(c.asleep())
	now := c.now()
	switch {
	case now < h.deadline():
		return
	case h.maxAt > 0 && now >= h.maxAt && h.maxAt <= h.end:
		c.lose(h, &LostError{Reason: ReasonMaxHold})
	default:
		c.lose(h, &LostError{Reason: ReasonExpired, Err: h.renewal.lastErr})
	}
	if c.info.Multiplexed {
		c.begin()
		// A margin later, as where the store does it: the holder has this time to see it.
		time.AfterFunc(min(h.storeEnd()-now, margin(h.ttl)), func() {
			c.mu.Lock()
			c.releaseLate(context.Background(), h)
			c.end()
			c.unlock()
		})
	}
}
