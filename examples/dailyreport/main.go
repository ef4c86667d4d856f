// Command dailyreport shows a job that has to run once per round. Several instances of
// one application, all with the same schedule, wake up for the daily report. One of
// them writes it; the others say who is at it, or who has done it, and leave it alone.
//
//	go run ./examples/dailyreport                                 # goroutines, nothing to install
//	go run ./examples/dailyreport -url redis://localhost:6379/0   # processes on a Redis
//
// A lock alone is not once per round: it says that nobody else is at the job now, and
// nothing about a minute ago. If the job is shorter than the time by which the
// instances start apart, a late one finds the lock free again. So the job, once it has
// the lock, first looks at a durable mark: "report 2026-11-29 done by instance-1 with
// token 17". And since a holder can lose its lock without noticing, the mark refuses
// whoever comes with a smaller token than it has seen.
//
// In the second round an instance crashes at the worst moment, after the work and
// before the mark. In the third one an instance freezes there, and wakes up when
// another one has taken over.
//
// Read job.go first: it is what an application has to do. mark.go is the database,
// mishap.go makes instances fail, process.go makes them processes, and this file sends
// them through the rounds and counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-locker/locker"
	_ "github.com/go-locker/locker/memlock"   // mem://
	_ "github.com/go-locker/locker/redislock" // redis://
)

// plan is what the flags say.
type plan struct {
	URL            string
	Run            string // sets this run of the program apart from others on the same server
	Rounds         int
	Instances      int
	TTL, Job, Skew time.Duration
}

// limit is how long a round may take before it counts as failed.
func (p plan) limit() time.Duration { return p.Skew + 10*(p.TTL+p.Job) }

// round is a day on which the report is due.
type round struct {
	Number int
	Day    string
	Start  time.Time
	Mishap mishap
}

// task is one instance's part in a round.
type task struct {
	plan
	round
	Name  string
	Delay time.Duration // how long after the round's start the instance wakes up
}

// starter runs an instance through its part, in a goroutine or in a process.
type starter func(ctx context.Context, t task, tell func(event)) error

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program. It returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	if text, ok := os.LookupEnv(taskEnv); ok {
		return child(ctx, text)
	}
	p, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	start, what := inProcess, "processes, which share the locks of a server"
	if strings.HasPrefix(p.URL, "mem:") {
		what = "goroutines, which share the locks of this process"
		start = inGoroutine(func(ctx context.Context) (locker.Locker, error) {
			return locker.Open(ctx, p.URL)
		}, newMemory())
	} else if err := check(ctx, p); err != nil {
		fmt.Fprintln(errOut, err)
		return 1
	}
	fmt.Fprintf(out, intro, p.Instances, what, p.Skew, p.Job, p.TTL)
	if err := play(ctx, p, start, out); err != nil {
		fmt.Fprintln(errOut, err)
		return 1
	}
	return 0
}

const intro = `%d instances of an application are %s.
All want to write the daily report; one is to do it. They wake up within %v, the work takes %v.
A lease lasts %v unless it is renewed; who skips looks again when the holder's would be over.
A lock alone would not do: an instance that wakes up after the work finds it free again. So the
job looks at a durable mark first, and the mark refuses a token that is older than one it has seen.
`

// parse reads the flags, and says on errOut what is wrong with them.
func parse(args []string, errOut io.Writer) (plan, error) {
	p := plan{Run: uuid.NewString()}
	fs := flag.NewFlagSet("dailyreport", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.StringVar(&p.URL, "url", "mem://", "where the locks are: mem://, with goroutines as instances, or a `URL`\n"+
		"such as redis://localhost:6379/0, with processes")
	fs.IntVar(&p.Rounds, "rounds", 3, "how many days to play; by turns all goes well, an instance\n"+
		"crashes, an instance freezes")
	fs.IntVar(&p.Instances, "instances", 5, "how many instances wake up for the report, at least 2")
	fs.DurationVar(&p.TTL, "ttl", time.Second, "lease of the lock: how long a crashed instance stops the others")
	fs.DurationVar(&p.Job, "job", 300*time.Millisecond, "how long it takes to write the report")
	fs.DurationVar(&p.Skew, "skew", 500*time.Millisecond, "by how much the instances wake up apart; if that is longer than\n"+
		"the job, the lock alone would not do")
	fs.Usage = func() {
		fmt.Fprint(errOut, "dailyreport plays a job that several instances of an application are to do once a day.\n"+
			"It exits with 1 if the report of any day was written twice or never.\n\n")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case p.Rounds < 1 || p.Instances < 2:
		err = errors.New("it takes one round and two instances at least")
	case p.Job < 0 || p.Skew < 0:
		err = errors.New("a duration is negative")
	case p.TTL < 50*time.Millisecond:
		err = errors.New("-ttl is under 50ms: too short to be renewed safely")
	}
	if err != nil {
		fmt.Fprintln(errOut, err)
	}
	return p, err
}

// play sends the instances through the rounds. It fails if a report was not written
// exactly once.
func play(ctx context.Context, p plan, start starter, out io.Writer) error {
	total := make(map[kind]int)
	var runs []int // reports written, per round
	for n := range p.Rounds {
		r := round{Number: n, Start: time.Now(), Mishap: mishaps[n%len(mishaps)]}
		r.Day = r.Start.AddDate(0, 0, n).Format(time.DateOnly)
		fmt.Fprintf(out, "\nRound %d: the report %s is due%s.\n", n+1, r.Day, r.Mishap)
		count, err := playRound(ctx, p, r, start, out)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			fmt.Fprintln(out, err) // whether it matters, the count tells
		}
		runs = append(runs, count[wrote])
		for k, c := range count {
			total[k] += c
		}
	}

	perRound, err := "1", error(nil)
	if slices.ContainsFunc(runs, func(n int) bool { return n != 1 }) {
		perRound, err = fmt.Sprint(runs), errors.New("a report was written twice or never")
	}
	fmt.Fprintf(out, "\n%d rounds, runs per round = %s, takeovers = %d, refused stale writes = %d\n",
		p.Rounds, perRound, total[tookOver], total[refused])
	return err
}

// playRound runs all instances through a round, and counts what they tell.
func playRound(ctx context.Context, p plan, r round, start starter, out io.Writer) (map[kind]int, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit())
	defer cancel()
	var (
		mu    sync.Mutex
		count = make(map[kind]int)
		errs  = make([]error, p.Instances)
		wg    sync.WaitGroup
	)
	tell := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		count[e.Kind]++
		fmt.Fprintf(out, "  %5.2fs  %-10s  %s\n", time.Since(r.Start).Seconds(), e.Name, e.Text)
	}
	for i := range p.Instances {
		place := (i + r.Number) % p.Instances // another one is the first in each round
		t := task{
			plan:  p,
			round: r,
			Name:  fmt.Sprintf("instance-%d", i+1),
			Delay: p.Skew * time.Duration(place) / time.Duration(p.Instances-1),
		}
		wg.Go(func() { errs[i] = start(ctx, t, tell) })
	}
	wg.Wait()
	return count, errors.Join(errs...)
}

// inGoroutine starts instances in this process, each with a Locker of its own.
func inGoroutine(open func(context.Context) (locker.Locker, error), db marks) starter {
	return func(ctx context.Context, t task, tell func(event)) error {
		l, err := open(ctx)
		if err != nil {
			return err
		}
		// A goroutine cannot be killed. One that is silent until its lease has ended
		// looks the same to the others.
		die := func() { time.Sleep(2 * t.TTL) }
		in := &instance{task: t, locks: l, marks: db, tell: tell, die: die}
		return errors.Join(in.attend(ctx), l.Close(ctx))
	}
}
