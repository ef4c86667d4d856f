package locker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The sentinels say what happened; match them with errors.Is. One error means
// one fact: held is not lost, lost is not an outage, and an outage is never
// reported as held.
var (
	// ErrHeld: somebody else holds the key. Returned, as a *HeldError, by
	// TryAcquire, and joined to the context's error by an Acquire whose wait ended
	// while the key was held. Only the store, or this locker's own live grant,
	// can cause it; an unreachable store never does.
	ErrHeld = errors.New("locker: held by another owner")

	// ErrLost: this grant ended without a release. Returned, as a *LostError, by
	// Lock.Err, Lock.Extend and Lock.Release, and by TryAcquire for a grant that
	// arrived after its own lease was over.
	ErrLost = errors.New("locker: lock lost")

	// ErrReleased: this grant was released by its holder. Returned by Lock.Err
	// and Lock.Extend.
	ErrReleased = errors.New("locker: lock released")

	// ErrUnsupported: the backend cannot do what was asked, and says so instead
	// of doing something less.
	ErrUnsupported = errors.New("locker: not supported by this backend")

	// ErrInvalid: an argument breaks a documented rule. Returned before anything
	// is sent, for the same arguments on every backend.
	ErrInvalid = errors.New("locker: invalid argument")

	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("locker: closed")
)

// HeldError says who holds a key. It matches ErrHeld.
type HeldError struct {
	Key string

	// Holder is what the store shows: the owner id, followed by a space and the
	// label if one was given; whatever value another client stored; the session
	// that has the key, in the store's words, where that is all that the store
	// knows (CapSessionHolder); empty where the backend does not know. Of a live
	// grant of this Locker it is always the owner id and the label.
	Holder string

	// Remaining is how long the holder's lease lasts if nobody renews it. Zero
	// means unknown, or a holder without an expiry.
	Remaining time.Duration
}

func (e *HeldError) Error() string {
	s := "locker: " + short(e.Key) + " is held"
	if e.Holder != "" {
		s += fmt.Sprintf(" by %q", e.Holder)
	}
	if e.Remaining > 0 {
		s += fmt.Sprintf(", lease ends in %v", e.Remaining)
	}
	return s
}

// Is reports that a HeldError is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Reason says why a grant was lost.
type Reason string

// The reasons a LostError can carry.
const (
	// ReasonExpired: the lease ran out, by this process's own clock, or the store
	// shows nothing under the key any more, which may have been removed.
	ReasonExpired Reason = "expired"
	// ReasonTaken: the store shows another owner under the key.
	ReasonTaken Reason = "taken"
	// ReasonSession: the store session that carried the lock ended.
	ReasonSession Reason = "session ended"
	// ReasonMaxHold: WithMaxHold's bound was reached.
	ReasonMaxHold Reason = "max hold reached"
	// ReasonClosed: the Locker was closed while the lock was held.
	ReasonClosed Reason = "locker closed"
)

// LostError says why a grant was lost. It matches ErrLost.
type LostError struct {
	Key    string // filled in by the Locker
	Reason Reason
	Err    error // the last error of the renewal, or the end of the store's session, if one preceded the loss
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("locker: lost %s: %s", short(e.Key), e.Reason)
	if e.Err != nil {
		s += fmt.Sprintf(" (last error: %v)", e.Err)
	}
	return s
}

// Is reports that a LostError is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the error that preceded the loss, if any.
func (e *LostError) Unwrap() error { return e.Err }

// Error is how a Locker reports everything that is not just a HeldError or LostError:
// the operation, the backend and the key, around the cause. The driver's own error
// stays reachable by errors.As.
type Error struct {
	Op      string // "acquire", "extend", "release", "close", "open", …
	Backend string // the backend's name; empty before one is chosen
	Key     string // empty where no single key is meant
	Err     error
}

func (e *Error) Error() string {
	s := "locker: " + e.Op
	if e.Key != "" {
		s += " " + short(e.Key)
	}
	if e.Backend != "" {
		s += " on " + e.Backend
	}
	return s + ": " + strings.TrimPrefix(e.Err.Error(), "locker: ")
}

// short quotes a key, and leaves out the end of a long one.
func short(key string) string {
	const most = 64
	if len(key) <= most {
		return strconv.Quote(key)
	}
	return strconv.Quote(key[:most]) + "…"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Permanent marks an error of a Backend as one that waiting does not cure: no
// permission, wrong type, missing table. It ends a waiting Acquire and a
// repeated release at once. Every other error is taken to pass and is waited
// out with back-off until the caller's context ends. It implies NoEffect.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err is one that waiting does not cure: it was marked with
// Permanent, or is ErrInvalid or ErrUnsupported.
func IsPermanent(err error) bool { return isPermanent(err) }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// NoEffect marks an error of a Backend as one after which the store certainly is as
// it was: the request never left, or was refused. Unmarked errors leave that open, so
// that a repeated release which finds the key gone is taken for a success of the one
// before. NoEffect(nil) is nil.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &noEffectError{err}
}

type noEffectError struct{ err error }

func (e *noEffectError) Error() string { return e.err.Error() }
func (e *noEffectError) Unwrap() error { return e.err }

func isNoEffect(err error) bool {
	_, marked := errors.AsType[*noEffectError](err)
	return marked || isPermanent(err)
}

func isPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrInvalid)
}

// invalidf makes an error that matches ErrInvalid.
func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
