package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-locker/locker"
)

// settings are what the endpoint has to be told.
type settings struct {
	Name     string        // of this instance; the others' clients are shown it
	Keys     string        // what the locks' keys begin with: the same for all instances
	TTL      time.Duration // how long a crashed instance stops the others
	Limit    time.Duration // how long a job may take before it counts as hung
	Patience time.Duration // how long a request waits for the store
}

// endpoint is one instance's HTTP interface to its jobs:
//
//	POST /jobs/{job}   starts it: 202, or 409 if it runs anywhere, or 503
//	GET  /jobs/{job}   how its last run on this instance went
type endpoint struct {
	settings
	locks locker.Locker
	runs  *runs
	jobs  map[string]job
	log   func(format string, args ...any)
}

func (e *endpoint) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs/{job}", e.start)
	mux.HandleFunc("GET /jobs/{job}", e.show)
	return mux
}

// start takes the job's lock and starts the job. The request's context bounds the
// taking only: the job belongs to the instance, and goes on when the client hangs up.
// So a job is not ended by a proxy's time-out, and has to be asked for once only.
func (e *endpoint) start(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("job")
	do, ok := e.jobs[name]
	if !ok {
		refuse(w, problem{Status: http.StatusNotFound, Detail: "no such job"})
		return
	}
	if !e.runs.enter() {
		refuse(w, problem{Status: http.StatusServiceUnavailable, Detail: "this instance is shutting down"})
		return
	}
	// Without a bound, a store that went silent would keep the client waiting.
	ctx, cancel := context.WithTimeout(r.Context(), e.Patience)
	defer cancel()
	k, err := e.locks.TryAcquire(ctx, e.Keys+name,
		locker.WithLabel(e.Name),
		locker.WithTTL(e.TTL),
		locker.WithMaxHold(e.Limit)) // a job that hangs does not stop the others for ever
	if err != nil {
		e.runs.leave()
		refuse(w, e.explain(err))
		return
	}
	begun := e.runs.begin(name, e.Name, do, k)
	w.Header().Set("Location", "/jobs/"+name)
	answer(w, http.StatusAccepted, "application/json", begun)
}

// explain says why a job was not started.
func (e *endpoint) explain(err error) problem {
	held, ok := errors.AsType[*locker.HeldError](err)
	if !ok {
		// Not a conflict: nobody knows whether the job runs. It is not started, since
		// nothing would keep others out. What the store said is not for the client.
		e.log("%v", err)
		return problem{Status: http.StatusServiceUnavailable, Detail: "no lock can be had now, the job was not started"}
	}
	return problem{
		Status: http.StatusConflict, Detail: "job already running", Holder: nameOf(held.Holder),
		// What remains is not when the job is done: its holder renews. It is when the
		// job is free again if the holder has crashed. Where the store does not know
		// that, it is a lease.
		RetryAfter: seconds(cmp.Or(held.Remaining, e.TTL)),
	}
}

// show tells about the last run. An application with many instances behind one address
// keeps its runs in its database, so that any of them can tell.
func (e *endpoint) show(w http.ResponseWriter, r *http.Request) {
	last, ok := e.runs.last(r.PathValue("job"))
	if !ok {
		refuse(w, problem{Status: http.StatusNotFound, Detail: "it has not run on this instance"})
		return
	}
	answer(w, http.StatusOK, "application/json", last)
}

// problem is what a client is told that does not get its way, as in RFC 9457.
type problem struct {
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Detail     string `json:"detail"`
	Holder     string `json:"holder,omitempty"`
	RetryAfter int    `json:"retryAfter,omitempty"` // seconds, as in the header
}

func refuse(w http.ResponseWriter, p problem) {
	p.Title = http.StatusText(p.Status)
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	answer(w, p.Status, "application/problem+json", p)
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// seconds rounds up: who came back earlier would be sent away again.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// nameOf finds the label in what a store shows of a holder: the owner id, a space and
// the label. A client of another kind may have stored anything.
func nameOf(holder string) string {
	_, label, _ := strings.Cut(holder, " ")
	return cmp.Or(label, holder)
}
