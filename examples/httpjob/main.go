// Command httpjob shows an HTTP endpoint that starts a job: a report, an import, what a
// cron service or a webhook asks for. Several instances of the application serve it, and
// the job is to run once at a time among all of them.
//
//	go run ./examples/httpjob                                 # a demonstration, nothing to install
//	go run ./examples/httpjob -url redis://localhost:6379/0   # the same on a Redis
//	go run ./examples/httpjob -url redis://localhost:6379/0 -listen :8080   # serves, until Ctrl-C
//
// Who asks while it runs is told 409 Conflict, who is at it, and when to come back. A
// store that does not answer is 503 and never 409: nobody knows then whether the job
// runs. The job does not run in the request, but belongs to the instance: it goes on when
// the client hangs up, and ends when its lock is lost or the instance shuts down. How it
// ended is told at the address that the answer names.
//
// Read endpoint.go first, the answers to requests, and then runs.go, the jobs under
// their locks: they are what an application has to do. instance.go puts them into a
// server and shuts that down, story.go is the demonstration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/go-locker/locker"
	_ "github.com/go-locker/locker/etcdlock"  // etcd://
	_ "github.com/go-locker/locker/memlock"   // mem://
	_ "github.com/go-locker/locker/pglock"    // postgres://
	_ "github.com/go-locker/locker/redislock" // redis://
)

// plan is what the flags say.
type plan struct {
	URL       string
	Listen    string // empty: the demonstration
	Instances int
	TTL, Job  time.Duration
	Drain     time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program. It returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	p, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	if p.Listen != "" {
		err = listen(ctx, p, out, errOut)
	} else {
		err = demonstrate(ctx, p, out)
	}
	if err != nil {
		fmt.Fprintln(errOut, err)
		return 1
	}
	return 0
}

// parse reads the flags, and says on errOut what is wrong with them.
func parse(args []string, errOut io.Writer) (plan, error) {
	var p plan
	fs := flag.NewFlagSet("httpjob", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.StringVar(&p.URL, "url", "mem://", "where the locks are: mem://, which the instances in this process share,\n"+
		"or a `URL` such as redis://localhost:6379/0, which all share that use it")
	fs.StringVar(&p.Listen, "listen", "", "serve one instance on an `address` such as :8080 until a signal, instead of\n"+
		"the demonstration")
	fs.IntVar(&p.Instances, "instances", 3, "how many instances take part in the demonstration, at least 2")
	fs.DurationVar(&p.TTL, "ttl", time.Second, "lease of a lock: how long a crashed instance stops the others")
	fs.DurationVar(&p.Job, "job", 500*time.Millisecond, "how long the job takes")
	fs.DurationVar(&p.Drain, "drain", 10*time.Second, "how long a shutdown waits for jobs before it stops them, with -listen")
	fs.Usage = func() {
		fmt.Fprint(errOut, "httpjob is an HTTP endpoint that starts a job, once at a time among many instances.\n\n")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case p.Instances < 2:
		err = errors.New("it takes two instances at least")
	case p.Job < 0 || p.Drain < 0:
		err = errors.New("a duration is negative")
	case p.TTL < 50*time.Millisecond:
		err = errors.New("-ttl is under 50ms: too short to be renewed safely")
	}
	if err != nil {
		fmt.Fprintln(errOut, err)
	}
	return p, err
}

// settings are those of an instance.
func (p plan) settings(name, keys string) settings {
	return settings{
		Name: name, Keys: keys, TTL: p.TTL,
		Limit:    10*p.Job + time.Minute,
		Patience: 2 * time.Second,
	}
}

// report is the job.
func (p plan) report(ctx context.Context, _ locker.Lock) error { return pause(ctx, p.Job) }

// pause waits for d. If ctx ends before, the error is its cause: ErrLost under a lock.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listen serves one instance until ctx ends.
func listen(ctx context.Context, p plan, out, errOut io.Writer) error {
	locks, err := locker.Open(ctx, p.URL)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return errors.Join(err, locks.Close(ctx))
	}
	name := fmt.Sprintf("%.90s/%d", host, os.Getpid()) // within what a label may have
	log := func(format string, args ...any) { fmt.Fprintf(errOut, format+"\n", args...) }
	in, err := serve(ctx, p.Listen, p.settings(name, "httpjob:"), locks, map[string]job{"report": p.report}, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s serves:\n  curl -i -X POST %s/jobs/report\n  curl %[2]s/jobs/report\n", name, in.url)
	select {
	case <-ctx.Done():
		fmt.Fprintf(out, "shuts down; jobs have %v\n", p.Drain)
	case <-in.served: // the listener broke; shutdown says how
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Drain)
	defer cancel()
	return in.shutdown(patience)
}

// newKeys sets this run of the demonstration apart from others on the same server.
func newKeys() string { return "httpjob:" + uuid.NewString() + ":" }
