package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// job is what an endpoint starts. ctx ends when the lock k is lost, or when the instance
// shuts down; the job has to stop then. What it writes, it should write with k.Token, and
// let the resource refuse a smaller one than it has seen: between a look at ctx and a
// write a process can be paused past its lease.
type job func(ctx context.Context, k locker.Lock) error

// record is one run of a job, as clients are shown it.
type record struct {
	Job      string    `json:"job"`
	Instance string    `json:"instance"`
	Token    uint64    `json:"token"` // the lock's: larger for each later record, and so its number
	State    state     `json:"state"`
	Error    string    `json:"error,omitempty"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
}

// state is how a run stands.
type state string

const (
	running state = "running"
	done    state = "done"
	failed  state = "failed"
	stopped state = "stopped" // by the shutdown of its instance
	lost    state = "lost"    // its lock: another run may have begun before this one had ended
)

var errShutdown = errors.New("the instance is shutting down")

// runs are an instance's jobs at work, and the last run of each.
type runs struct {
	log  func(format string, args ...any)
	ctx  context.Context // of all jobs
	stop context.CancelCauseFunc

	mu       sync.Mutex
	draining bool
	latest   map[string]record
	working  sync.WaitGroup
}

func newRuns(log func(format string, args ...any)) *runs {
	ctx, stop := context.WithCancelCause(context.Background())
	return &runs{log: log, ctx: ctx, stop: stop, latest: make(map[string]record)}
}

// enter is asked before a lock is taken for a job: false if no more may begin. Otherwise
// a shutdown waits for the begin or the leave that has to follow.
func (rs *runs) enter() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !rs.draining {
		rs.working.Add(1)
	}
	return !rs.draining
}

func (rs *runs) leave() { rs.working.Done() }

// begin starts a job under its lock, which it owns from here on.
func (rs *runs) begin(name, instance string, do job, k locker.Lock) record {
	r := record{Job: name, Instance: instance, Token: k.Token(), State: running, Started: time.Now()}
	rs.keep(r)
	go func() {
		defer rs.leave()
		err, release := perform(rs.ctx, do, k)
		rs.end(r, err, release)
	}()
	return r
}

// perform does the job and gives the lock back, as locker.Do does. Do takes the lock
// itself; here the request has taken it, which had to know the answer.
func perform(ctx context.Context, do job, k locker.Lock) (err, release error) {
	ctx, cancel := locker.WithLock(ctx, k)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p) // as in a handler, it does not end the other jobs
		}
		cancel() // what the job has left behind ends first
		release = k.Release(ctx)
	}()
	return do(ctx, k), nil
}

// end keeps the result, when the lock has been given back: who sees it can start the
// job again.
func (rs *runs) end(r record, err, release error) {
	r.State, r.Ended = done, time.Now()
	switch {
	case errors.Is(release, locker.ErrLost):
		// Whatever the job says, which may not have looked: it was not alone for certain.
		r.State = lost
		if !errors.Is(err, locker.ErrLost) {
			err = errors.Join(err, release)
		}
	case errors.Is(err, errShutdown):
		r.State = stopped
	case err != nil:
		r.State = failed
	}
	if err != nil {
		r.Error = err.Error()
	}
	if release != nil && r.State != lost {
		rs.log("the lock of %s stays taken until its lease ends: %v", r.Job, release)
	}
	rs.keep(r)
}

// keep makes r the job's last run, unless a later one has begun: before this one had
// its answer from the store, or while its request stood still, longer than its lease.
func (rs *runs) keep(r record) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.latest[r.Job].Token <= r.Token {
		rs.latest[r.Job] = r
	}
}

// last is the last run of a job that began here.
func (rs *runs) last(name string) (record, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r, ok := rs.latest[name]
	return r, ok
}

// drain begins no more jobs, and returns when those at work have ended. They are given
// until ctx ends, then they are told to stop, and have for that as long as grace says. A
// job that goes on all the same is left behind.
func (rs *runs) drain(ctx context.Context, grace time.Duration) {
	rs.mu.Lock()
	rs.draining = true
	rs.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		rs.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	rs.stop(errShutdown)
	select {
	case <-ended:
	case <-time.After(grace):
	}
}
