package conformance

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// result is the verdict, after close.
func (t *trial) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Clones: a goroutine that was left behind may add to them.
	r := Result{Status: Pass, Failures: slices.Clone(t.failures), Figures: slices.Clone(t.figures)}
	switch {
	case t.broken != nil:
		r.Status, r.Reason = Error, t.broken.Error()
	case len(r.Failures) > 0:
		r.Status = Fail
	}
	return r
}

// figure records a measurement.
func (t *trial) figure(name string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.figures = append(t.figures, Figure{Name: name, Value: d})
}

// fail records that seen is not what was wanted.
func (t *trial) fail(seen, wanted string) {
	at := place()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.failures {
		if t.failures[i].Place == at { // a loop: the first round tells the story
			t.failures[i].Times++
			return
		}
	}
	t.failures = append(t.failures, Failure{Seen: seen, Wanted: wanted, Place: at, Times: 1})
}

// want records a failure unless ok; seen is a format.
func (t *trial) want(ok bool, wanted, seen string, args ...any) bool {
	if !ok {
		t.fail(fmt.Sprintf(seen, args...), wanted)
	}
	return ok
}

// must is want, and ends the calling goroutine on a failure.
func (t *trial) must(ok bool, wanted, seen string, args ...any) {
	if !t.want(ok, wanted, seen, args...) {
		runtime.Goexit()
	}
}

// mustWork ends the calling goroutine if the suite or the Harness broke.
func (t *trial) mustWork(what string, err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	if t.broken == nil && t.ctx.Err() == nil { // after the end of the case it has to fail
		t.broken = fmt.Errorf("%s: %w", what, err)
	}
	t.mu.Unlock()
	runtime.Goexit()
}

// place is where the case stands: the innermost function of this package that is
// a case's, and not a method or the runner.
func place() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		file := filepath.Base(f.File)
		if strings.HasPrefix(f.Function, packagePath) && !strings.Contains(f.Function, ".(*") &&
			file != "suite.go" && file != "harness.go" {
			return fmt.Sprintf("%s:%d", file, f.Line)
		}
		if !more {
			return "no line of the case"
		}
	}
}

// wantError records a failure unless err matches all of targets.
func (t *trial) wantError(err error, targets ...error) bool {
	for _, target := range targets {
		if !errors.Is(err, target) {
			return t.want(false, fmt.Sprintf("an error that matches %q", target), "error: %v", err)
		}
	}
	return true
}

// wantNoMatch records a failure if err matches one of targets.
func (t *trial) wantNoMatch(err error, targets ...error) {
	for _, target := range targets {
		t.want(!errors.Is(err, target), fmt.Sprintf("an error that does not match %q", target), "error: %v", err)
	}
}

// recover is deferred on every goroutine of a case. A panic in the suite's own
// code is the suite's defect; a panic anywhere else is the Locker's.
func (t *trial) recover() {
	v := recover()
	if v == nil {
		return
	}
	stack := debug.Stack()
	if panickedHere() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.broken = fmt.Errorf("panic: %v\n%s", v, stack)
		return
	}
	t.fail(fmt.Sprintf("panic: %v\n%s", v, stack), "no panic")
}

// panickedHere reports whether the code that panicked belongs to this package.
func panickedHere() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	inPanic := false
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			inPanic = true
		case inPanic && !strings.HasPrefix(f.Function, "runtime."):
			return strings.HasPrefix(f.Function, packagePath)
		}
		if !more {
			return false
		}
	}
}

const packagePath = "github.com/go-locker/locker/conformance."

func stacks() string {
	buf := make([]byte, 64<<10)
	return string(buf[:runtime.Stack(buf, true)])
}
