package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// story is the demonstration: instances, their client, and what it saw.
type story struct {
	plan
	start     time.Time
	client    *http.Client
	keys      string
	instances []*instance

	mu  sync.Mutex // of out
	out io.Writer
}

// reply is what an endpoint answers: a run, or a problem.
type reply struct {
	Code       int    `json:"-"`
	RetryAfter string `json:"-"` // the header
	Where      string `json:"-"` // the URL of the run
	record
	Detail string `json:"detail"`
	Holder string `json:"holder"`
}

func (r reply) String() string {
	switch {
	case r.Code == http.StatusAccepted:
		return fmt.Sprintf("202 Accepted: it runs, with token %d", r.Token)
	case r.Code == http.StatusConflict:
		return fmt.Sprintf("409 Conflict: %s, by %s; Retry-After: %s", r.Detail, r.Holder, r.RetryAfter)
	case r.Detail != "":
		return fmt.Sprintf("%d %s: %s", r.Code, http.StatusText(r.Code), r.Detail)
	case r.Error != "":
		return fmt.Sprintf("%d %s: %s (%s)", r.Code, http.StatusText(r.Code), r.State, r.Error)
	}
	return fmt.Sprintf("%d %s: %s", r.Code, http.StatusText(r.Code), r.State)
}

// demonstrate plays the story. It fails if an answer is not the one it should be.
func demonstrate(ctx context.Context, p plan, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+10*(p.Job+p.TTL))
	defer cancel()
	s := &story{plan: p, out: out, start: time.Now(), client: &http.Client{}, keys: newKeys()}
	defer func() {
		over, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel() // no patience with jobs any more
		for _, in := range s.instances {
			err = errors.Join(err, in.shutdown(over))
		}
		s.client.CloseIdleConnections()
	}()
	for i := range p.Instances {
		if err := s.open(ctx, fmt.Sprintf("instance-%d", i+1), p.URL); err != nil {
			return err
		}
	}
	for _, chapter := range []func(context.Context) error{s.together, s.again, s.takenAway, s.shutDown, s.outage} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) open(ctx context.Context, name, url string) error {
	locks, err := locker.Open(ctx, url)
	if err != nil {
		return err
	}
	log := func(format string, args ...any) { s.tell(name, "logs: "+format, args...) }
	in, err := serve(ctx, "127.0.0.1:0", s.settings(name, s.keys), locks, map[string]job{"report": s.report}, log)
	if err != nil {
		return err
	}
	s.instances = append(s.instances, in)
	return nil
}

// together: all are asked at the same time.
func (s *story) together(ctx context.Context) error {
	s.title("Every instance is asked for the report, at the same time.")
	replies := make([]reply, len(s.instances))
	errs := make([]error, len(s.instances))
	var wg sync.WaitGroup
	for i, in := range s.instances {
		wg.Go(func() { replies[i], errs[i] = s.post(ctx, in) })
	}
	wg.Wait()
	var accepted []reply
	for i, r := range replies {
		switch {
		case errs[i] != nil:
			return errs[i]
		case r.Code == http.StatusAccepted:
			accepted = append(accepted, r)
		case r.Code != http.StatusConflict:
			return fmt.Errorf("%s answers %v", s.instances[i].Name, r)
		}
		s.tell(s.instances[i].Name, "%v", r)
	}
	if len(accepted) != 1 {
		return fmt.Errorf("%d instances run it", len(accepted))
	}
	return s.await(ctx, accepted[0], done)
}

// again: what is done can be done again, by another one.
func (s *story) again(ctx context.Context) error {
	s.title("Then another one is. No client waits for the job, and none can end it by hanging up.")
	r, err := s.expect(ctx, s.instances[1], http.StatusAccepted)
	if err != nil {
		return err
	}
	return s.await(ctx, r, done)
}

// takenAway: the lock is lost in the middle of the job.
func (s *story) takenAway(ctx context.Context) error {
	s.title("While it runs, an operator takes its lock away, as a store would that lost the key.")
	r, err := s.expect(ctx, s.instances[0], http.StatusAccepted)
	if err != nil {
		return err
	}
	operator, ok := s.instances[1].locks.(locker.Inspector)
	if !ok {
		return errors.New("the store has no view for operators")
	}
	key := s.keys + "report"
	shown, err := operator.Inspect(ctx, key)
	if err != nil {
		return err
	}
	if _, err := operator.ForceRelease(ctx, key, shown.Holder); err != nil {
		return err
	}
	return s.await(ctx, r, lost)
}

// shutDown: an instance ends while its job runs.
func (s *story) shutDown(ctx context.Context) error {
	first := s.instances[0]
	s.title(first.Name + " is shut down while it runs the report, and has no time to wait for it.")
	if _, err := s.expect(ctx, first, http.StatusAccepted); err != nil {
		return err
	}
	hurry, cancel := context.WithCancel(ctx)
	cancel()
	s.instances = s.instances[1:]
	if err := first.shutdown(hurry); err != nil {
		return err
	}
	last, _ := first.runs.last("report")
	s.tell(first.Name, "is gone; the report: %s (%s)", last.State, last.Error)
	r, err := s.expect(ctx, s.instances[0], http.StatusAccepted) // it need not wait for the lease
	if err != nil {
		return err
	}
	return s.await(ctx, r, done)
}

// outage: the store cannot be reached.
func (s *story) outage(ctx context.Context) error {
	s.title("Nobody listens where this instance has its locks.")
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	if err := s.open(ctx, "instance-x", "redis://"+address); err != nil {
		return err
	}
	_, err = s.expect(ctx, s.instances[len(s.instances)-1], http.StatusServiceUnavailable)
	return err
}

// expect asks for the report, and for an answer.
func (s *story) expect(ctx context.Context, in *instance, code int) (reply, error) {
	r, err := s.post(ctx, in)
	if err == nil && r.Code != code {
		err = fmt.Errorf("%s answers %v", in.Name, r)
	}
	if err == nil {
		s.tell(in.Name, "%v", r)
	}
	return r, err
}

// await asks for a run until it has ended, in the state that it should.
func (s *story) await(ctx context.Context, of reply, want state) error {
	for {
		r, err := s.send(ctx, http.MethodGet, of.Where)
		switch {
		case err != nil:
			return err
		case r.State != running && r.State != want:
			return fmt.Errorf("the run on %s: %v", of.Instance, r)
		case r.State == want:
			s.tell(of.Instance, "%v", r)
			return nil
		}
		if err := pause(ctx, s.Job/10+time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *story) post(ctx context.Context, in *instance) (reply, error) {
	return s.send(ctx, http.MethodPost, in.url+"/jobs/report")
}

func (s *story) send(ctx context.Context, method, url string) (r reply, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return r, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return r, err
	}
	r.Code, r.RetryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
	if where, err := resp.Location(); err == nil {
		r.Where = where.String()
	}
	return r, nil
}

func (s *story) title(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "\n%s\n", text)
}

func (s *story) tell(name, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "  %5.2fs  %-10s  %s\n", time.Since(s.start).Seconds(), name, fmt.Sprintf(format, args...))
}
