package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// Check judges h without go test. filter chooses cases by their id; nil stands
// for all. each, if not nil, is called with every result as it comes.
//
// A program that calls Check with a Harness that has an Env has to call Child
// first thing. It blocks until the last case has ended, or ctx; what has not run
// by then is an Error.
func Check(ctx context.Context, h Harness, filter *regexp.Regexp, each func(Result)) *Report {
	s := newSuite(ctx, h, programProcess())
	for _, c := range Cases() {
		if filter != nil && !filter.MatchString(c.ID) || !s.applies(c) {
			continue
		}
		r := s.judge(ctx, c)
		if each != nil {
			each(r)
		}
	}
	return &s.report
}

// suite is one run over the table.
type suite struct {
	h       Harness
	info    locker.Info // only Can is known of a Locker that does not tell
	broken  error       // Open failed: no case can run
	process process
	prefix  string // of every key of this run
	report  Report
}

func newSuite(ctx context.Context, h Harness, p process) *suite {
	h.TTL = cmp.Or(h.TTL, DefaultTTL)
	s := &suite{h: h, process: p, prefix: "conformance-" + rand.Text()[:8]}
	if child, _ := childOf(""); child {
		// It would start children of its own, and those again, without end.
		s.broken = errors.New("this process was started by the suite: the program has to call Child, " +
			"with the same Harness, before Check or History")
		return s
	}
	if h.Open == nil {
		s.broken = errors.New("Harness.Open is nil")
		return s
	}
	l, err := h.Open(ctx)
	if err != nil {
		s.broken = fmt.Errorf("Harness.Open: %w", err)
		return s
	}
	defer closeNow(ctx, l)
	if teller, ok := l.(interface{ Info() locker.Info }); ok {
		s.info = teller.Info()
	}
	if h.Can != 0 {
		s.info.Can = h.Can
	}
	if s.info.Local {
		s.h.OpenVia = nil // no connections
	}
	if s.info.Can == 0 {
		s.broken = errors.New("nothing is promised: set Harness.Can, or declare at least CapExclusive in the backend's Info")
	} else if ctx.Err() == nil {
		s.broken = s.unusable(ctx, l)
	}
	s.report.Backend, s.report.Can = s.info.Name, s.info.Can
	return s
}

// unusable says why nothing could be judged: a store that does not answer, or an
// OpenVia that does not dial by its network. Whether the answers are right is for the
// cases.
func (s *suite) unusable(ctx context.Context, l locker.Locker) error {
	if err := s.probe(ctx, l); err != nil {
		return fmt.Errorf("the store of Harness.Open cannot be used: %w", err)
	}
	if s.h.OpenVia == nil {
		return nil
	}
	net := new(faultnet.Network)
	defer net.Close()
	via, err := s.h.OpenVia(ctx, net)
	if err != nil {
		return fmt.Errorf("Harness.OpenVia: %w", err)
	}
	defer closeNow(ctx, via)
	if err := s.probe(ctx, via); err != nil {
		return fmt.Errorf("the store of Harness.OpenVia cannot be used: %w", err)
	}
	if net.Dials() == 0 {
		return errors.New("Harness.OpenVia has made no connection through its network: the client has to dial by net.Dial")
	}
	return nil
}

// probe takes a key that nobody else uses. An answer of any kind is good enough.
func (s *suite) probe(ctx context.Context, l locker.Locker) error {
	ctx, cancel := context.WithTimeout(ctx, 2*prompt)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		defer func() {
			if recover() != nil {
				answer <- nil // a panic is for the cases to judge
			}
		}()
		k, err := l.TryAcquire(ctx, s.prefix+"/probe", locker.WithTTL(s.h.TTL))
		if k != nil {
			_ = k.Release(ctx)
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		if errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrLost) {
			return nil
		}
		return err
	case <-time.After(3 * prompt):
		return nil // a hang is, too
	}
}

// applies reports whether the case is part of the run, and about this kind of store. It
// counts those that are about another: a store in the memory of one process has no
// other processes.
func (s *suite) applies(c Case) bool {
	if s.h.Only != nil && !s.h.Only(c) {
		return false
	}
	if s.info.Local && s.h.Env == nil && c.Uses&PartProcesses != 0 {
		s.report.NotApplicable++
		return false
	}
	return true
}

// judge runs one case and adds its result to the report.
func (s *suite) judge(ctx context.Context, c Case) Result {
	start := time.Now()
	r := s.run(ctx, c)
	r.Case, r.Took = c, time.Since(start)
	s.report.Results = append(s.report.Results, r)
	return r
}

// run runs one case, on a goroutine of its own, so that a stuck one can be ended
// and left behind.
func (s *suite) run(outer context.Context, c Case) Result {
	if s.broken != nil {
		return Result{Status: Error, Reason: s.broken.Error()}
	}
	if err := outer.Err(); err != nil {
		return Result{Status: Error, Reason: "not run: " + err.Error()}
	}
	if missing := s.missing(c); missing != "" {
		return Result{Status: Skip, Reason: "no " + missing}
	}
	if less := c.Except & s.info.Can; less != 0 {
		return Result{Status: Skip, Reason: "not with " + less.String()}
	}

	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	t := &trial{
		ctx: ctx, suite: s, ttl: s.h.TTL,
		name: s.prefix + "/" + strings.ReplaceAll(c.ID, "/", "-"),
	}
	limit := 30*time.Second + 20*t.ttl
	ended := t.start(func() { c.run(t) })
	if !within(ended, limit) {
		// The ended context frees what waits for a lock or an answer.
		t.fail(fmt.Sprintf("the case has not ended after %v; goroutines:\n%s", limit, stacks()), "an end")
		cancel(errStuck)
		within(ended, prompt)
	}
	cancel(errOver)
	t.close()
	if err := outer.Err(); err != nil {
		return Result{Status: Error, Reason: "interrupted: " + err.Error()}
	}
	return t.result()
}

// missing names what c needs and does not get.
func (s *suite) missing(c Case) string {
	names := (c.Uses &^ s.h.parts()).Strings()
	if lacks := c.Needs &^ s.info.Can; lacks != 0 {
		names = slices.Insert(names, 0, lacks.String())
	}
	return strings.Join(names, ", ")
}

var (
	errStuck = errors.New("conformance: the case took too long")
	errOver  = errors.New("conformance: the case is over")
)

// within waits for ch to be closed, but not longer than d.
func within(ch <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return isClosed(ch)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ch:
		return true
	case <-timer.C:
		return false
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// closeNow closes l without waiting for holders.
func closeNow(ctx context.Context, l locker.Locker) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	_ = l.Close(ctx)
}
