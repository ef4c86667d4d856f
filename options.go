package locker

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// DefaultTTL is the lease of a lock when neither Config nor WithTTL says
	// otherwise: how long a crashed holder blocks the others at most.
	DefaultTTL = 30 * time.Second

	// MinTTL and MaxTTL bound what WithTTL, Config.TTL and Lock.Extend accept.
	// The lower one is the unit of Redis' leases; the upper one keeps a holder
	// that was forgotten from blocking a key for ever.
	MinTTL = time.Millisecond
	MaxTTL = 20 * 24 * time.Hour

	maxKeyBytes   = 512
	maxLabelBytes = 128
)

// Config configures a Locker. A nil *Config stands for the defaults.
type Config struct {
	// TTL is the lease of a lock unless WithTTL sets another. Zero: DefaultTTL.
	// A held lock is renewed when a third of it has passed, or somewhat earlier
	// together with others.
	TTL time.Duration

	// Observer, if set, is told what happens to every lock, and how the store's
	// settings endanger them all: see Event. It is called after the fact, outside of
	// the Locker's own mutex, on the goroutine that found out: of a call, which may
	// find that another lock's time is over, or of a renewal. Two goroutines may
	// bring news out of order. It should return soon: it holds up the call it is
	// part of, but never a renewal or a deadline.
	// It must be safe for concurrent use. It may use the Locker, except for Close.
	// A panic in it is swallowed; runtime.Goexit (t.FailNow) is not allowed.
	Observer func(Event)
}

// Option changes one acquire. Options are values: later ones win.
type Option struct {
	set  optionSet
	dur  time.Duration
	text string
}

type optionSet uint8

const (
	setTTL optionSet = 1 << iota
	setLabel
	setNoRenewal
	setMaxHold
	setNoHandover
)

// WithTTL sets the lock's lease. It is rounded up to what the store counts;
// Lock.TTL tells. Under MinTTL or over MaxTTL it is ErrInvalid.
func WithTTL(ttl time.Duration) Option { return Option{set: setTTL, dur: ttl} }

// WithLabel adds a text for operators to what the store shows of the holder, unless
// that is only its own session (CapSessionHolder):
// valid UTF-8 without control characters, at most 128 bytes. It identifies
// nobody: the owner id does.
func WithLabel(label string) Option { return Option{set: setLabel, text: label} }

// WithoutRenewal leaves the lease to run out: the lock is lost at its Deadline
// unless Lock.Extend moves it.
func WithoutRenewal() Option { return Option{set: setNoRenewal} }

// WithMaxHold ends the automatic renewal, and with it the hold, after d: a holder
// that hangs does not block the others for ever. It has to be positive. The lock
// is lost then (ReasonMaxHold); the store frees the key when the last lease runs
// out, or when the holder calls Release. Where one session of the store carries many
// locks (Info.Multiplexed), the Locker gives the key back a margin after the loss.
func WithMaxHold(d time.Duration) Option { return Option{set: setMaxHold, dur: d} }

// WithoutHandover makes this lock go back to the store on release, even when the
// Locker could pass it on to a local waiter. So far it never does: the option states
// what code relies on.
func WithoutHandover() Option { return Option{set: setNoHandover} }

// settings are the options of one call, applied and checked.
type settings struct {
	ttl     time.Duration
	label   string
	renew   bool
	maxHold time.Duration // 0: none
}

func (c *core) settings(opts []Option) (settings, error) {
	s := settings{ttl: c.ttl, renew: true}
	for _, o := range opts {
		switch o.set {
		case setTTL:
			if err := validTTL(o.dur); err != nil {
				return s, err
			}
			s.ttl = o.dur
		case setLabel:
			if err := validLabel(o.text); err != nil {
				return s, err
			}
			s.label = o.text
		case setNoRenewal:
			s.renew = false
		case setMaxHold:
			if o.dur <= 0 {
				return s, invalidf("max hold %v is not positive", o.dur)
			}
			s.maxHold = o.dur
		case setNoHandover:
			// Local hand-over is not there yet: every release goes to the store.
		}
	}
	s.ttl = c.roundTTL(s.ttl)
	return s, nil
}

// roundTTL rounds up to what the store counts.
func (c *core) roundTTL(ttl time.Duration) time.Duration {
	ttl = max(ttl, c.info.MinTTL)
	if unit := c.info.Unit; unit > 1 {
		ttl = (ttl + unit - 1) / unit * unit
	}
	return ttl
}

func validTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return invalidf("TTL %v is not between %v and %v", ttl, MinTTL, MaxTTL)
	}
	return nil
}

// ValidKey is nil for what can be a key on every backend: non-empty valid UTF-8 without
// NUL, of at most 512 bytes. Anything else is ErrInvalid, with the reason.
func ValidKey(key string) error {
	switch {
	case key == "":
		return invalidf("empty key")
	case len(key) > maxKeyBytes:
		return invalidf("key of %d bytes, at most %d are allowed", len(key), maxKeyBytes)
	case !utf8.ValidString(key):
		return invalidf("key %s is not valid UTF-8", short(key))
	case strings.IndexByte(key, 0) >= 0:
		return invalidf("key %s contains a NUL byte", short(key))
	}
	return nil
}

func validLabel(label string) error {
	switch {
	case len(label) > maxLabelBytes:
		return invalidf("label of %d bytes, at most %d are allowed", len(label), maxLabelBytes)
	case !utf8.ValidString(label):
		return invalidf("label %q is not valid UTF-8", label)
	}
	for _, r := range label {
		if unicode.IsControl(r) {
			return invalidf("label %q contains a control character", label)
		}
	}
	return nil
}
