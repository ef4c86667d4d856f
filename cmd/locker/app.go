package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/urfave/cli/v3"

	"github.com/go-locker/locker"
	_ "github.com/go-locker/locker/etcdlock"
	_ "github.com/go-locker/locker/memlock"
	_ "github.com/go-locker/locker/pglock"
	_ "github.com/go-locker/locker/redislock"
)

// app is the command: where it writes, and nothing that outlives one call of run.
type app struct {
	out io.Writer
	err io.Writer
	log *log.Logger // on err, one line for each message

	warned sync.Map // the warnings so far: they are about the store

	interrupted bool // the command that ran was ended by a Ctrl-C
}

func newApp(out, err io.Writer) *app {
	return &app{out: out, err: err, log: log.New(err, "locker: ", 0)}
}

// run does what the arguments say, and returns the exit code. It has said on standard
// error what is wrong.
func (a *app) run(ctx context.Context, args []string) int {
	err := a.root().Run(ctx, keepDashes(args))
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[*exitError](err); !ok { // the library's own: no action was reached
		err = &exitError{code: exitUsage, err: err}
	}
	return a.tell(err).code
}

// tell prints what an error that knows its exit code has to say, and returns what is
// left of it, the code.
func (a *app) tell(err error) *exitError {
	e, _ := errors.AsType[*exitError](err)
	if e.err != nil {
		a.log.Print(oneLine(e.err))
		if e.code == exitUsage {
			a.log.Print("locker --help and locker COMMAND --help say how it is used")
		}
	}
	return &exitError{code: e.code}
}

// keepDashes doubles the "--" that ends the flags. The library swallows the first one
// it meets, and run has to know whether there was a key before it: a key from a shell
// variable that is not set must not make the command's first word the key.
func keepDashes(args []string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return slices.Insert(slices.Clone(args), i, "--")
	}
	return args
}

func (a *app) root() *cli.Command {
	return &cli.Command{
		Name:  "locker",
		Usage: "run a command under a distributed lock, look at locks, test what grants them",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name:    "url",
				Usage:   "where the locks are: redis://[user:password@]host:6379/0?prefix=app:&ttl=10s, rediss://…, redis-cluster://host:port,…, redis-sentinel://host:port,…/master, postgres://[user:password@]host:5432/database?locker_mode=lease, etcd://[user:password@]host:2379,…/prefix; mem:// excludes within one process only, for trials",
				Sources: cli.EnvVars("LOCKER_URL"),
			},
			&cli.BoolFlag{
				Name:    "verbose",
				Aliases: []string{"v"},
				Usage:   "tell on standard error what happens to locks",
			},
			// The library's own one would take -v.
			&cli.BoolFlag{Name: "version", Local: true, Usage: "print the version"},
		},
		Commands:        []*cli.Command{a.runCommand(), a.whoCommand(), a.lsCommand(), a.releaseCommand(), a.conformanceCommand(), helpCommand()},
		HideHelpCommand: true, // the library's own one would be there under each command, and "help" is a good name for a key

		UseShortOptionHandling: true, // -nE 7

		Writer:    a.out,
		ErrWriter: a.err,
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Bool("version") {
				fmt.Fprintln(a.out, version())
				return nil
			}
			// The word is not repeated: it may be a URL.
			return usagef("want: locker run, who, ls, release or conformance")
		},
		OnUsageError:   asIs,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run sees to it
	}
}

// version is what go build, or go install, has noted down.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "locker, built without modules"
	}
	return fmt.Sprintf("locker %s, %s", info.Main.Version, info.GoVersion)
}

func helpCommand() *cli.Command {
	return &cli.Command{
		Name:         "help",
		Usage:        "show how locker, or one of its commands, is used",
		ArgsUsage:    "[COMMAND]",
		OnUsageError: asIs,
		Action: action(func(ctx context.Context, c *cli.Command) error {
			switch name := c.Args().First(); {
			case name == "":
				return cli.ShowRootCommandHelp(c.Root())
			case c.Root().Command(name) == nil:
				return usagef("there is no command of that name")
			default:
				return cli.ShowCommandHelp(ctx, c.Root(), name)
			}
		}),
	}
}

// asIs keeps the library from printing a usage error, and the help below it.
func asIs(_ context.Context, _ *cli.Command, err error, _ bool) error { return err }

// action is what a command does; its error gets an exit code, if it has none yet.
func action(do func(context.Context, *cli.Command) error) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		err := do(ctx, c)
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[*exitError](err); ok {
			return err
		}
		return &exitError{code: codeOf(err), err: err}
	}
}

// words are the arguments behind the flags.
func words(c *cli.Command) []string {
	args := c.Args().Slice()
	if len(args) > 0 && args[0] == "--" { // see keepDashes
		return args[1:]
	}
	return args
}

// open opens the Locker that the flags name.
func (a *app) open(ctx context.Context, c *cli.Command) (locker.Locker, error) {
	return a.openVia(ctx, c, nil)
}

// openVia is open over connections that dial makes.
func (a *app) openVia(ctx context.Context, c *cli.Command, dial func(context.Context, string, string) (net.Conn, error)) (locker.Locker, error) {
	raw := c.String("url")
	if raw == "" {
		return nil, errNoURL
	}
	return locker.OpenWith(ctx, raw, &locker.OpenConfig{
		Config: locker.Config{Observer: a.observer(c.Bool("verbose"))},
		Dial:   dial,
	})
}

// parts are the scheme and the query of a URL that may list several hosts, which
// url.Parse does not always take. What is wrong with it is for Open to say.
func parts(raw string) (scheme string, query url.Values) {
	scheme, rest, _ := strings.Cut(raw, "://")
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		if u, err := url.Parse(rest[at:]); err == nil {
			query = u.Query()
		}
	}
	return strings.ToLower(scheme), query
}

var errNoURL = usagef("no URL: --url, or LOCKER_URL in the environment, says where the locks are, such as redis://localhost:6379/0")

func infoOf(l locker.Locker) (info locker.Info) {
	if teller, ok := l.(interface{ Info() locker.Info }); ok {
		info = teller.Info()
	}
	return info
}

// closeNow gives back what is still held.
func (a *app) closeNow(l locker.Locker) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Close(ended); err != nil {
		a.log.Print(oneLine(err))
	}
}

// observer writes one line for each event that the user wants to see.
func (a *app) observer(verbose bool) func(locker.Event) {
	return func(e locker.Event) {
		if !verbose && e.Kind != locker.EventWarning {
			return
		}
		line := string(e.Kind)
		if e.Kind == locker.EventReleased && e.Err != nil {
			line = "release failed"
		}
		if e.Key != "" {
			line += fmt.Sprintf(" %q", e.Key)
		}
		if e.Token != 0 {
			line += fmt.Sprintf(" token %d", e.Token)
		}
		if e.Wait != 0 {
			line += fmt.Sprintf(" after %v", e.Wait)
		}
		if e.Held != 0 {
			line += fmt.Sprintf(" held for %v", e.Held)
		}
		if e.Err != nil {
			line += ": " + oneLine(e.Err)
		}
		if e.Kind == locker.EventWarning {
			if _, again := a.warned.LoadOrStore(line, nil); again {
				return // by another Locker of the suite
			}
		}
		a.log.Print(line)
	}
}

// oneLine is an error's text without the prefix that log adds.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "locker: "), "\n", "; ")
}
