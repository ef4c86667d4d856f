package locker

import (
	"context"
	"errors"
	"time"
)

// Extend implements Lock.
func (h *hold) Extend(ctx context.Context, ttl time.Duration) error {
	return h.c.fail("extend", h.req.Key, h.extend(ctx, ttl))
}

func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	if err := validTTL(ttl); err != nil {
		return err
	}
	c := h.c
	if ctx.Err() != nil {
		return ended(ctx, nil, nil)
	}
	// One at a time: which of two Extends the store saw last could not be known.
	slot := h.extendSlot()
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return ended(ctx, nil, nil)
	case <-h.Done():
		return h.Err()
	}

	ttl = c.roundTTL(ttl)
	c.mu.Lock()
	c.checkClock(h)
	switch {
	case h.err != nil:
		c.unlock()
		return h.err
	case c.extender == nil && ttl != h.ttl:
		c.unlock()
		return ErrUnsupported
	}
	s := c.stamp()
	before := h.cap
	if ttl < h.ttl || s.at+ttl-margin(ttl) < h.end {
		// The store may act on this at any time from now on, answered or not.
		h.cap = ttl
		h.shorten(Lease{TTL: ttl}, s)
	}
	// A renewal under way may be older at the store than this: do not count it.
	h.renewal.abandon()
	c.schedule(h)
	c.unlock()

	lease, err := guarded(ctx, c, h.Done(), 0, func(ctx context.Context) (Lease, error) {
		if c.extender == nil {
			return h.grant.Renew(ctx, ttl)
		}
		return c.extender.Extend(ctx, h.grant, ttl)
	}, nil)

	c.mu.Lock()
	defer c.unlock()
	c.checkClock(h)
	switch {
	case h.err != nil:
		return h.err
	case err == nil:
		h.cap = before // the store has this one: a later, longer one may count
		// A renewal sent meanwhile asked for the old TTL: it must not set it again.
		h.renewal.abandon()
		h.count(lease, s)
		c.schedule(h)
		c.checkClock(h)
		return h.err
	case errors.Is(err, ErrLost):
		c.lose(h, lostError(err))
		return h.err
	}
	if !isNoEffect(err) && (h.cap == 0 || ttl < h.cap) {
		// It may reach the store yet, and after a later one that is longer.
		h.cap = ttl
	}
	if err == errAbandoned && ctx.Err() == nil {
		return ErrClosed
	}
	if ctx.Err() != nil {
		return ended(ctx, nil, nil)
	}
	return err
}

func (h *hold) extendSlot() chan struct{} {
	h.c.mu.Lock()
	defer h.c.unlock()
	if h.extends == nil {
		h.extends = make(chan struct{}, 1)
	}
	return h.extends
}
