package locker

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-locker/locker/internal/suspend"
)

// core is the one implementation of Locker: everything that is the same for every
// store. One mutex guards all of it; the code holds it for short, straight pieces
// and never over a call of the backend or the observer.
//
// The way of a lock through the files: Acquire (acquire.go) leads its key's line
// (line.go) or waits for that, and pursues the key (pursue.go) by attempts on the
// backend (attempt.go) until one of them can be adopted as a hold (hold.go). The
// hold is renewed (renew.go) by a schedule for all of them (schedule.go) until it is
// lost (deadline.go) or released (release.go), which lets the line advance.
type core struct {
	b        Backend
	info     Info
	ttl      time.Duration
	observer func(Event)

	waker     Waker
	queuer    Queuer
	extender  Extender
	batch     BatchRenewer
	inspector Inspector
	warner    Warner // nil without an observer
	closer    Closer

	// epoch is the zero of instant; asleep tells how long the machine has been
	// suspended since it started.
	epoch  time.Time
	asleep func() time.Duration

	// ctx ends when Close begins, and with it every wait and attempt.
	ctx    context.Context
	cancel context.CancelFunc

	// work ends when Close has no time left for what is still to be given back.
	work     context.Context
	stopWork context.CancelFunc

	mu    sync.Mutex
	lines map[string]*line // one per key that is held, tried or waited for here
	later later            // to be done when mu is free

	plan  plan          // live holds by their next event
	timer *time.Timer   // fires at the first of them
	armed instant       // when it does; 0: it is not set
	slept time.Duration // the machine's sleep when tick last looked

	closing    bool
	deaf       bool               // to warnings: Close has waited for the last ones
	orphans    map[*hold]struct{} // lost by Close, not yet released by their holders
	unreturned map[*hold]error    // and those that could not be given back so far
	owing      map[string]*owed   // by owner: what is being given back; see lasting
	pending    int                // leads, attempts and detached work under way
	returned   chan struct{}      // closed when there are no orphans left; see settle
	settled    chan struct{}      // closed when nothing is pending either
	closed     chan struct{}      // closed when Close is done
	closeErr   error
}

var (
	_ Locker    = (*core)(nil)
	_ Inspector = (*core)(nil)
)

// instant is a time on the monotonic clock, counted from the Locker's making.
type instant = time.Duration

func (c *core) now() instant { return time.Since(c.epoch) }

// New builds the Locker around a Backend. It is what the constructors of the
// backends' packages call, and what a third party calls for its own. A nil cfg
// stands for the defaults. It does no I/O.
//
// It is ErrInvalid if cfg breaks a documented rule, or if b declares a Capability
// without implementing the interface that it stands for, or the other way round.
//
// The Locker has two more methods, found by assertion: Info() Info, and those of
// Inspector, which are ErrUnsupported where the backend lacks them.
func New(b Backend, cfg *Config) (Locker, error) {
	if b == nil {
		return nil, invalidf("no backend")
	}
	if cfg == nil {
		cfg = &Config{}
	}
	c := &core{
		b:        b,
		info:     b.Info(),
		ttl:      cfg.TTL,
		observer: cfg.Observer,
		epoch:    time.Now(),
		asleep:   suspend.Total,
		lines:    make(map[string]*line),
		orphans:  make(map[*hold]struct{}),

		unreturned: make(map[*hold]error),
		owing:      make(map[string]*owed),

		closed: make(chan struct{}),
	}
	if c.ttl == 0 {
		c.ttl = DefaultTTL
	}
	if err := validTTL(c.ttl); err != nil {
		return nil, err
	}
	if c.info.Local {
		c.asleep = func() time.Duration { return 0 }
	}
	if err := c.findInterfaces(); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.work, c.stopWork = context.WithCancel(context.Background())
	if p, ok := b.(LossPusher); ok {
		p.OnLoss(c.lossReported)
	}
	if w, ok := b.(Warner); ok && c.observer != nil {
		c.warner = w
		w.OnWarning(c.warned)
	}
	return c, nil
}

func (c *core) findInterfaces() error {
	c.waker, _ = c.b.(Waker)
	c.queuer, _ = c.b.(Queuer)
	c.extender, _ = c.b.(Extender)
	c.batch, _ = c.b.(BatchRenewer)
	c.inspector, _ = c.b.(Inspector)
	c.closer, _ = c.b.(Closer)
	_, pushesLoss := c.b.(LossPusher)

	if c.info.Name == "" {
		return invalidf("the backend %T has no name", c.b)
	}
	if c.info.Local && c.info.Multiplexed {
		return invalidf("the backend %s is in this process, and declares sessions", c.info.Name)
	}
	for _, want := range []struct {
		cap Capability
		has bool
	}{
		{CapWakeUp, c.waker != nil || c.queuer != nil},
		{CapFIFO, c.queuer != nil},
		{CapExtend, c.extender != nil},
		{CapInspect, c.inspector != nil},
		{CapPushLoss, pushesLoss},
	} {
		switch declared := c.info.Can.Has(want.cap); {
		case declared && !want.has:
			return invalidf("the backend %s declares %s but lacks its interface", c.info.Name, want.cap)
		case !declared && want.has:
			return invalidf("the backend %s has the interface for %s but does not declare it", c.info.Name, want.cap)
		}
	}
	return nil
}

// Info describes the backend.
func (c *core) Info() Info { return c.info }

// Inspect implements Inspector.
func (c *core) Inspect(ctx context.Context, key string) (Holding, error) {
	if err := c.inspectable(key); err != nil {
		return Holding{}, c.fail("inspect", key, err)
	}
	h, err := c.inspector.Inspect(ctx, key)
	return h, c.fail("inspect", key, err)
}

// ForceRelease implements Inspector.
func (c *core) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	if err := c.inspectable(key); err != nil {
		return false, c.fail("force release", key, err)
	}
	done, err := c.inspector.ForceRelease(ctx, key, holder)
	return done, c.fail("force release", key, err)
}

// List implements Inspector.
func (c *core) List(ctx context.Context, yield func(string, Holding) bool) error {
	if c.inspector == nil {
		return c.fail("list", "", ErrUnsupported)
	}
	return c.fail("list", "", c.inspector.List(ctx, yield))
}

func (c *core) inspectable(key string) error {
	if c.inspector == nil {
		return ErrUnsupported
	}
	return ValidKey(key)
}

// fail wraps an error with what it was about; nil stays nil.
func (c *core) fail(op, key string, err error) error {
	switch err.(type) {
	case nil:
		return nil
	case *HeldError, *LostError:
		return err // they name the key, and say all
	}
	return &Error{Op: op, Backend: c.info.Name, Key: key, Err: err}
}

// newOwner makes a random UUID. uuid.New reads through an interface, for which
// every call pays with an allocation.
func newOwner() string {
	var u uuid.UUID
	_, _ = rand.Read(u[:]) // it never fails: crypto/rand
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u.String()
}
