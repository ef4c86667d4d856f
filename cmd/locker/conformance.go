package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
)

// leastTTL is the shortest lease that the cases are run with: in a shorter one, answers
// that take their usual time look like broken rules.
const leastTTL = 100 * time.Millisecond

func (a *app) conformanceCommand() *cli.Command {
	return &cli.Command{
		Name:         "conformance",
		Usage:        "test a live deployment against the contract",
		ArgsUsage:    "[URL]",
		OnUsageError: asIs,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "run", Usage: "only the cases whose id matches `REGEXP`"},
			&cli.StringFlag{Name: "json", Usage: "write a report to `FILE`, - for standard output"},
			&cli.StringFlag{Name: "junit", Usage: "write a report in JUnit's XML to `FILE`, - for standard output"},
			&cli.BoolFlag{Name: "list", Usage: "print the cases, and test nothing"},
			&cli.BoolFlag{Name: "faults", Usage: "run the cases on broken networks too: the suite disturbs its own connections, and nobody else's"},
			&cli.StringFlag{Name: "ttl", DefaultText: conformance.DefaultTTL.String(), Usage: "lease `D` that most cases work with, at least " + leastTTL.String() + ": longer for a slow network"},
		},
		Action: action(a.conformance),
	}
}

func (a *app) conformance(ctx context.Context, c *cli.Command) error {
	filter, err := regexp.Compile(c.String("run"))
	if err != nil {
		return usagef("-run: %v", err)
	}
	chosen := slices.DeleteFunc(conformance.Cases(), func(cs conformance.Case) bool { return !filter.MatchString(cs.ID) })
	switch args := words(c); {
	case len(chosen) == 0:
		return usagef("no case matches -run %q; -list prints all", c.String("run"))
	case len(args) > 1:
		return usagef("conformance takes one URL, not %d", len(args))
	case len(args) == 1:
		if err := c.Set("url", args[0]); err != nil {
			return err
		}
	}
	if c.Bool("list") {
		list(a.out, chosen)
		return nil
	}
	ttl := conformance.DefaultTTL
	if c.IsSet("ttl") {
		if ttl, err = parseDuration("ttl", c.String("ttl")); err != nil {
			return err
		}
	}
	if ttl < leastTTL || ttl > locker.MaxTTL {
		return usagef("-ttl %v is not between %v and %v", ttl, leastTTL, locker.MaxTTL)
	}
	if c.String("json") == "-" && c.String("junit") == "-" {
		return usagef("-json and -junit cannot both go to standard output")
	}

	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer context.AfterFunc(ctx, stop)() // the second one ends at once
	defer stop()
	harness, err := a.harness(ctx, c, ttl)
	if err != nil {
		return notTested(err)
	}
	if harness.Env != nil && conformance.Child(ctx, harness) {
		return nil
	}
	return a.check(ctx, c, harness, filter, chosen)
}

// harness is how the suite reaches the deployment.
func (a *app) harness(ctx context.Context, c *cli.Command, ttl time.Duration) (conformance.Harness, error) {
	h := conformance.Harness{
		Open: func(ctx context.Context) (locker.Locker, error) { return a.open(ctx, c) },
		TTL:  ttl,
	}
	l, err := h.Open(ctx)
	if err != nil {
		return h, err
	}
	defer a.closeNow(l)
	info := infoOf(l)
	h.Can = info.Can
	if info.Local {
		return h, nil // neither other processes nor connections
	}
	h.Env = []string{} // this program's arguments and environment say it all
	if c.Bool("faults") {
		h.OpenVia = func(ctx context.Context, net *faultnet.Network) (locker.Locker, error) {
			return a.openVia(ctx, c, net.Dial)
		}
	}
	return h, nil
}

// check runs the suite and reports.
func (a *app) check(ctx context.Context, c *cli.Command, h conformance.Harness, filter *regexp.Regexp, chosen []conformance.Case) error {
	text := a.out
	var reports []report
	for _, r := range []report{{file: c.String("json"), write: writeJSON}, {file: c.String("junit"), write: writeJUnit}} {
		switch r.file {
		case "":
			continue
		case "-":
			r.to, text = a.out, a.err
		default:
			f, err := os.Create(r.file) // before the run: it takes minutes
			if err != nil {
				return notTested(err)
			}
			defer f.Close()
			r.to = f
		}
		reports = append(reports, r)
	}

	result := run{store: storeOf(c.String("url")), start: time.Now()}
	unreachable := probe(ctx, h)
	if unreachable != nil {
		result.Report = notRun(chosen, unreachable) // a CI server that finds no report may find an old one
	} else {
		result.Report = conformance.Check(ctx, h, filter, func(r conformance.Result) {
			if ctx.Err() == nil { // what was cut short, and what was not run, says nothing
				fmt.Fprintln(text, explained(h, r))
			}
		})
		for i, r := range result.Results {
			result.Results[i] = explained(h, r)
		}
		fmt.Fprintln(text, result.Summary())
	}
	result.interrupted = ctx.Err() != nil
	for _, r := range reports {
		if err := r.write(r.to, result); err != nil {
			return notTested(err)
		}
	}
	if unreachable != nil {
		return notTested(unreachable)
	}
	return a.verdict(ctx, h, result)
}

// notRun is the report of a run that did not begin.
func notRun(cases []conformance.Case, why error) *conformance.Report {
	r := new(conformance.Report)
	for _, c := range cases {
		r.Results = append(r.Results, conformance.Result{Case: c, Status: conformance.Error, Reason: "not run: " + oneLine(why)})
	}
	return r
}

// report is where and how to write a run down.
type report struct {
	file  string
	write func(io.Writer, run) error
	to    io.Writer
}

// verdict is the exit code of a run.
func (a *app) verdict(ctx context.Context, h conformance.Harness, r run) error {
	if r.interrupted {
		return &exitError{exitNotTested, errors.New("interrupted")}
	}
	if !r.tested() {
		return &exitError{exitNotTested, errors.New("nothing was tested")}
	}
	if r.OK() {
		return nil
	}
	if err := probe(ctx, h); err != nil {
		return notTested(fmt.Errorf("the store cannot be reached any more, which may be what failed the cases: %w", err))
	}
	if r.count(conformance.Fail, conformance.Must) == 0 {
		return &exitError{exitNotTested, errors.New("some cases could not be judged")}
	}
	if h.TTL < conformance.DefaultTTL {
		return &exitError{exitBroken, fmt.Errorf("rules are broken, or -ttl %v is too short for this store: the default is %v", h.TTL, conformance.DefaultTTL)}
	}
	return &exitError{exitBroken, errors.New("rules are broken")}
}

func notTested(err error) error {
	if errors.Is(err, locker.ErrInvalid) {
		return &exitError{exitUsage, err}
	}
	if _, ok := errors.AsType[*exitError](err); ok {
		return err
	}
	return &exitError{exitNotTested, err}
}

// probe takes a lock and gives it back: without an answer, every case would wait for
// one in vain, and call it a broken rule.
func probe(ctx context.Context, h conformance.Harness) error {
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	l, err := h.Open(ctx)
	if err != nil {
		return err
	}
	_, err = locker.TryDo(ctx, l, "conformance-probe-"+rand.Text(), func(context.Context, locker.Lock) error { return nil }, locker.WithTTL(oneRequest))
	ended, end := context.WithCancel(context.Background())
	end()
	return errors.Join(err, l.Close(ended))
}
