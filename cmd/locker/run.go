package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/go-locker/locker"
)

func (a *app) runCommand() *cli.Command {
	stopAtKey := 1
	return &cli.Command{
		Name:         "run",
		Usage:        "run a command while holding a key",
		ArgsUsage:    "KEY -- COMMAND [ARGUMENT...]",
		OnUsageError: asIs,
		StopOnNthArg: &stopAtKey,
		MutuallyExclusiveFlags: []cli.MutuallyExclusiveFlags{{Flags: [][]cli.Flag{
			{&cli.BoolFlag{Name: "nonblock", Aliases: []string{"n"}, Usage: "do not wait for the key"}},
			{&cli.StringFlag{Name: "wait", Aliases: []string{"w"}, Usage: "wait at most `D` for the key: seconds, or a duration such as 1m30s"}},
		}}},
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "conflict-exit-code", Aliases: []string{"E"}, Value: strconv.Itoa(exitHeld), DefaultText: strconv.Itoa(exitHeld), Usage: "exit with `CODE` if the key is held"},
			&cli.StringFlag{Name: "ttl", DefaultText: "30s, or the URL's ttl", Usage: "lease `D`: what a crash blocks the key for at most"},
			&cli.StringFlag{Name: "grace", DefaultText: "a third of the TTL", Usage: "what the command gets (`D`) between SIGTERM and SIGKILL when the lock is lost, at most half the TTL"},
			&cli.StringFlag{Name: "label", Value: ownLabel(), DefaultText: "user@host and process id", Usage: "what locker who shows of this holder"},
		},
		Action: action(a.runLocked),
	}
}

// task is what the arguments of run ask for.
type task struct {
	key     string
	command *process
	wait    time.Duration // 0: not at all; forever
	ttl     time.Duration
	grace   time.Duration
	held    int // the exit code
	label   string
}

const forever time.Duration = -1

func newTask(c *cli.Command) (t task, err error) {
	args := words(c)
	if err := misplaced(args); err != nil {
		return t, err
	}
	t = task{key: args[0], wait: forever, ttl: ttlOf(c.String("url")), label: c.String("label")}
	if t.held, err = strconv.Atoi(c.String("conflict-exit-code")); err != nil || t.held < 0 || t.held > 255 {
		return t, usagef("-E %q is not a number between 0 and 255", c.String("conflict-exit-code"))
	}
	if c.IsSet("wait") {
		if t.wait, err = parseDuration("w", c.String("wait")); err != nil {
			return t, err
		}
	}
	if c.Bool("nonblock") {
		t.wait = 0
	}
	if c.IsSet("ttl") {
		if t.ttl, err = parseDuration("-ttl", c.String("ttl")); err != nil {
			return t, err
		}
	}
	t.grace = t.ttl / 3
	if c.IsSet("grace") {
		if t.grace, err = parseDuration("-grace", c.String("grace")); err != nil {
			return t, err
		}
	}
	if t.grace > t.ttl/2 {
		// The next renewal is due when a third of the TTL has passed, and needs time.
		return t, usagef("grace %v is not between 0 and half the TTL, %v", t.grace, t.ttl/2)
	}
	t.command, err = newProcess(args[2:])
	return t, err
}

// misplaced says which of run's arguments is not where it belongs.
func misplaced(args []string) error {
	const want = "want: locker run [flags] KEY -- COMMAND [ARGUMENT...]"
	switch {
	case len(args) >= 3 && args[1] == "--":
		return nil
	case len(args) < 2 || args[1] == "--":
		return usagef(want)
	case strings.HasPrefix(args[1], "-"):
		return usagef("flags go before KEY; %s", want)
	}
	return usagef("there is no -- right behind KEY; %s", want)
}

// parseDuration reads a flag's seconds, as flock takes them, or a duration.
func parseDuration(flag, s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		d, err = time.ParseDuration(s + "s")
	}
	if err != nil || d < 0 {
		return 0, usagef("-%s %q is neither seconds nor a duration such as 1m30s", flag, s)
	}
	return d, nil
}

// ttlOf is the lease of a lock that is opened by the URL. What is wrong with the URL
// is for Open to say.
func ttlOf(raw string) time.Duration {
	_, query := parts(raw)
	if d, err := time.ParseDuration(query.Get("ttl")); err == nil {
		return d
	}
	return locker.DefaultTTL
}

func ownLabel() string {
	name := "?"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	return fmt.Sprintf("%s@%s pid %d", name, host, os.Getpid())
}

func (a *app) runLocked(ctx context.Context, c *cli.Command) error {
	t, err := newTask(c)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	for _, s := range passedSignals {
		if !signal.Ignored(s) { // nohup means it for the command too
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	// A message that nobody reads must not end this process while the command runs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	l, err := a.openToRun(ctx, c, &t, signals)
	if err != nil {
		return err
	}
	defer a.closeNow(l)
	if infoOf(l).Local {
		a.log.Print("warning: mem:// is the memory of this process: it keeps nobody else from KEY")
	}
	k, err := a.acquire(ctx, l, t, signals, c.Bool("verbose"))
	if err != nil {
		return a.tell(err) // now: the clean-up may take time, and have an error too
	}

	t.command.setenv("LOCKER_KEY="+k.Key(), "LOCKER_OWNER="+k.Owner(), "LOCKER_TOKEN="+strconv.FormatUint(k.Token(), 10))
	lost, err := t.command.run(k, t.grace, signals, a.log)
	switch released := k.Release(ctx); {
	case lost != nil:
		return &exitError{exitLost, lost}
	case errors.Is(released, locker.ErrLost): // the command ended before it was known
		return &exitError{exitLost, released}
	case released != nil:
		a.log.Printf("%s; the key may stay taken for its TTL", oneLine(released))
	}
	a.interrupted = t.command.interrupted
	return err
}

// untilSignal runs do, whose context the first signal ends, and returns that.
func untilSignal(ctx context.Context, signals <-chan os.Signal, do func(context.Context)) (caught os.Signal) {
	ctx, stop := context.WithCancel(ctx)
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		select {
		case caught = <-signals:
			stop()
		case <-ctx.Done():
		}
	}()
	do(ctx)
	stop()
	<-listening
	return caught
}

// openToRun opens the Locker. Some stores are asked at once: a silent one is an error after
// five seconds, and with -w what may pass is waited out, which takes from that time.
func (a *app) openToRun(ctx context.Context, c *cli.Command, t *task, signals <-chan os.Signal) (l locker.Locker, err error) {
	caught := untilSignal(ctx, signals, func(ctx context.Context) {
		for end := time.Now().Add(t.wait); ; {
			bound := oneRequest
			if t.wait > 0 {
				bound = min(bound, max(time.Until(end), time.Millisecond))
			}
			once, cancel := context.WithTimeout(ctx, bound)
			l, err = a.open(once, c)
			cancel()
			if err == nil && t.wait > 0 {
				t.wait = max(time.Until(end), time.Millisecond)
			}
			if err == nil || ctx.Err() != nil || locker.IsPermanent(err) || t.wait <= 0 || time.Now().After(end) {
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	switch {
	case caught == nil:
		return l, err
	case err == nil:
		a.closeNow(l)
	}
	return nil, a.tell(signalled(caught))
}

// acquire gets the lock, or the error with the exit code.
func (a *app) acquire(ctx context.Context, l locker.Locker, t task, signals <-chan os.Signal, verbose bool) (k locker.Lock, err error) {
	caught := untilSignal(ctx, signals, func(ctx context.Context) { k, err = acquire(ctx, l, t) })
	switch {
	case caught != nil:
		return nil, signalled(caught) // Close gives back what was granted in the same moment
	case err == nil:
		return k, nil
	case errors.Is(err, locker.ErrHeld) && verbose:
		return nil, &exitError{t.held, err}
	case errors.Is(err, locker.ErrHeld):
		return nil, &exitError{code: t.held} // as quiet as flock
	case errors.Is(err, locker.ErrLost):
		return nil, &exitError{exitLost, fmt.Errorf("%w: its lease of %v was over before the store's answer came; a longer --ttl helps", err, t.ttl)}
	}
	return nil, &exitError{codeOf(err), err}
}

func acquire(ctx context.Context, l locker.Locker, t task) (locker.Lock, error) {
	opts := []locker.Option{locker.WithTTL(t.ttl), locker.WithLabel(t.label)}
	if t.wait > 0 {
		ctx, cancel := context.WithTimeout(ctx, t.wait)
		defer cancel()
		return l.Acquire(ctx, t.key, opts...)
	}
	first, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	k, err := l.TryAcquire(first, t.key, opts...)
	if t.wait == 0 || !errors.Is(err, locker.ErrHeld) {
		return k, err // a wait without an end is for a holder, not for a store that may not be there
	}
	return l.Acquire(ctx, t.key, opts...)
}
