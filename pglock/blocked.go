package pglock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-locker/locker"
)

// blockedAdvisory is an advisory backend whose waiters wait on the server.
type blockedAdvisory struct {
	*advisory
	solos *solos
}

var _ locker.Queuer = (*blockedAdvisory)(nil)

var cmdBlock = command{name: "block", sql: "SELECT pg_advisory_lock($1::bigint)"}

func (b *advisory) blocked() *blockedAdvisory {
	return &blockedAdvisory{advisory: b, solos: newSolos(b.sessions.connector)}
}

// Info implements locker.Backend.
func (b *blockedAdvisory) Info() locker.Info {
	info := b.advisory.Info()
	info.Can |= locker.CapFIFO
	return info
}

// OnLoss implements locker.LossPusher.
func (b *blockedAdvisory) OnLoss(report func(key, owner string, err error)) {
	b.advisory.OnLoss(report)
	b.solos.report = report
}

// Enqueue implements locker.Queuer. The lock stays on the session that has waited for it.
func (b *blockedAdvisory) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	s, err := b.solos.borrow(ctx)
	if err != nil {
		return nil, err
	}
	application := b.sessions.connector.application()
	number := b.inspector.number(req.Key)
	if err := b.solos.connector.young(s.wire); err != nil {
		b.solos.giveBack(s)
		return nil, err
	}
	// settle says how long the session may be silent, and its name.
	settle := func(first string, silence, gone time.Duration, name string) *call {
		settings := append(vanish(gone), setting{"idle_session_timeout", milliseconds(silence)}, setting{"application_name", name})
		return newCallWith(&command{sql: "SELECT " + first + setAll(settings, false)})
	}
	done := func() *call { return settle("", spareFor, reservation, application) }
	g := &soloGrant{
		ss: b.solos, s: s, sessionGrant: sessionGrant{w: s.wire, key: req.Key, owner: req.Owner, ttl: req.TTL},
		give: func() []*call { return []*call{done(), newCall(&cmdGiveBack, number)} },
		drop: func() []*call { return []*call{done()} },
	}
	return b.solos.enqueue(&place{
		g: g,
		wait: func() []*call {
			return []*call{
				settle("", reservation, reservation, sessionName(application, req.TTL)),
				newCallWith(&cmdBlock, strconv.FormatInt(number, 10)),
			}
		},
		claim: func(ctx context.Context) (locker.Grant, error) {
			c := settle(b.token+", ", req.TTL, req.TTL, sessionName(application, req.TTL))
			if err := s.do(ctx, c); err != nil {
				return g, failed(err)
			}
			return g, g.mint(c)
		},
		refusal: func(ctx context.Context) error {
			held := new(locker.HeldError)
			c, err := b.solos.ask(ctx, func() *call { return newCall(&cmdWho, number) })
			if err == nil {
				held.Holder, held.Remaining = holderOf(c.rows[0])
			}
			return held
		},
	}), nil
}

// Close implements locker.Closer.
func (b *blockedAdvisory) Close(ctx context.Context) error {
	return errors.Join(b.solos.close(ctx), b.advisory.Close(ctx))
}
