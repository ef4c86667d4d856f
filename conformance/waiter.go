package conformance

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-locker/locker"
)

// pass lets d pass, or ends the calling goroutine with the case.
func (t *trial) pass(d time.Duration) {
	if within(t.ctx.Done(), d) {
		runtime.Goexit()
	}
}

// passUntil lets the time pass until just after at.
func (t *trial) passUntil(at time.Time) { t.pass(time.Until(at) + time.Nanosecond) }

// eventually waits for ok, but not longer than prompt.
func (t *trial) eventually(ok func() bool) bool {
	for end := time.Now().Add(prompt); !ok(); t.pass(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// start runs f on its own goroutine and closes the channel at its end.
func (t *trial) start(f func()) <-chan struct{} {
	done := make(chan struct{})
	t.running.Go(func() {
		defer close(done)
		defer t.recover()
		f()
	})
	return done
}

// parallel runs f(0) to f(n-1), each on its own goroutine, and waits for all.
// If one of them could not go on, neither does the caller.
func (t *trial) parallel(n int, f func(i int)) {
	var finished atomic.Int64
	var done []<-chan struct{}
	for i := range n {
		done = append(done, t.start(func() {
			f(i)
			finished.Add(1)
		}))
	}
	for _, d := range done {
		<-d
	}
	if int(finished.Load()) < n {
		runtime.Goexit()
	}
}

// waiter is an Acquire that runs in the background.
type waiter struct {
	t      *trial
	cancel context.CancelCauseFunc
	done   <-chan struct{}
	lock   locker.Lock // after done
	err    error       // after done
	at     time.Time   // of the answer, after done
}

// wait starts an Acquire of key.
func (t *trial) wait(l locker.Locker, key string, opts ...locker.Option) *waiter {
	ctx, cancel := context.WithCancelCause(t.ctx)
	w := &waiter{t: t, cancel: cancel}
	w.done = t.start(func() {
		defer cancel(nil)
		w.lock, w.err = t.acquire(ctx, l, key, opts...)
		w.at = time.Now()
	})
	return w
}

// waitInLine starts an Acquire of key, which is held, and gives it the time to
// get into the line. There is no event to wait for, so a case must be right, if
// weaker, when that time was not enough.
func (t *trial) waitInLine(l locker.Locker, key string, opts ...locker.Option) *waiter {
	w := t.wait(l, key, opts...)
	t.pass(20 * time.Millisecond)
	return w
}

// wantWaiting checks that the Acquire has not ended. Its error is only there if it has.
func (w *waiter) wantWaiting() {
	if isClosed(w.done) {
		w.t.fail(fmt.Sprintf("it has ended: %v", w.err), "an Acquire that waits on")
	}
}

// served waits for the grant.
func (w *waiter) served(d time.Duration) locker.Lock {
	start := time.Now()
	w.t.must(within(w.done, d), fmt.Sprintf("the lock within %v", d), "still waiting after %v", time.Since(start))
	w.t.must(w.lock != nil, "the lock", "Acquire: %v", w.err)
	return w.lock
}

// failed waits for the end without a grant.
func (w *waiter) failed(d time.Duration) error {
	start := time.Now()
	w.t.must(within(w.done, d), fmt.Sprintf("an error within %v", d), "still waiting after %v", time.Since(start))
	w.t.must(w.err != nil, "an error", "Acquire: a lock")
	return w.err
}
