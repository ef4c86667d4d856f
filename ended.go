package locker

import (
	"context"
	"strings"
)

// ended is the error of a call whose context ended.
func (cl *call) ended() error { return ended(cl.ctx, cl.held, cl.last) }

func ended(ctx context.Context, held *HeldError, last error) error {
	e := &endedError{err: ctx.Err(), held: held, last: last}
	if cause := context.Cause(ctx); cause != e.err {
		e.cause = cause
	}
	return e
}

// endedError matches the context's error and cause, and what stood in the way.
type endedError struct {
	err, cause error
	held       *HeldError
	last       error
}

func (e *endedError) Error() string {
	var b strings.Builder
	b.WriteString(e.err.Error())
	if e.cause != nil {
		b.WriteString(" (" + e.cause.Error() + ")")
	}
	if e.held != nil {
		b.WriteString("; " + e.held.Error())
	}
	if e.last != nil {
		b.WriteString("; last error: " + e.last.Error())
	}
	return b.String()
}

func (e *endedError) Unwrap() []error {
	errs := []error{e.err}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	if e.held != nil {
		errs = append(errs, e.held)
	}
	if e.last != nil {
		errs = append(errs, e.last)
	}
	return errs
}
