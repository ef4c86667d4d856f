package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/urfave/cli/v3"

	"github.com/go-locker/locker"
)

// oneRequest bounds what makes one request.
const oneRequest = 5 * time.Second

func (a *app) whoCommand() *cli.Command {
	return &cli.Command{
		Name:         "who",
		Usage:        "show who holds a key",
		ArgsUsage:    "KEY",
		OnUsageError: asIs,
		Action: action(func(ctx context.Context, c *cli.Command) error {
			return a.at(ctx, c, func(ctx context.Context, s store, key string) error {
				h, err := s.Inspect(ctx, key)
				if err != nil {
					return err
				}
				if h.Holder == "" {
					return free(key)
				}
				owner, label := s.split(h.Holder)
				fmt.Fprintf(a.out, "key:       %s\nholder:    %s\nlabel:     %s\nremaining: %s\ntoken:     %s\n",
					plain(key), owner, label, remaining(h), token(h))
				return nil
			})
		}),
	}
}

func (a *app) lsCommand() *cli.Command {
	return &cli.Command{
		Name:         "ls",
		Usage:        "list the held keys: key, remaining time, token, holder and label, separated by tabs",
		ArgsUsage:    " ",
		OnUsageError: asIs,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "go through the whole store, although the URL has no prefix"},
		},
		Action: action(a.ls),
	}
}

func (a *app) ls(ctx context.Context, c *cli.Command) error {
	if len(words(c)) > 0 {
		return usagef("ls takes no arguments")
	}
	if !c.Bool("all") && sharedWithOthers(c.String("url")) {
		return usagef("the URL has no prefix: what is no lock, but looks like one, would be listed too; --all does that")
	}
	l, err := a.open(ctx, c)
	if err != nil {
		return err
	}
	defer a.closeNow(l)
	out, s := bufio.NewWriter(a.out), asStore(l)
	err = s.List(ctx, func(key string, h locker.Holding) bool {
		owner, label := s.split(h.Holder)
		_, err := fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", plain(key), remaining(h), token(h), owner, label)
		return err == nil // else nobody reads it any more
	})
	return errors.Join(err, out.Flush())
}

// sharedWithOthers reports whether the URL names a store in which locks cannot be told
// from other data by their names.
func sharedWithOthers(raw string) bool {
	scheme, query := parts(raw)
	return strings.HasPrefix(scheme, "redis") && query.Get("prefix") == ""
}

func (a *app) releaseCommand() *cli.Command {
	return &cli.Command{
		Name:         "release",
		Usage:        "take a key from its holder, who is told by push or at the next renewal",
		ArgsUsage:    "--force [--session] KEY",
		OnUsageError: asIs,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "required: the holder may be at work, and the next one is let in"},
			&cli.BoolFlag{Name: "session", Usage: "required where the holder is a session of the store, and nowhere else: it is ended, and all its locks fall"},
		},
		Action: action(func(ctx context.Context, c *cli.Command) error {
			if !c.Bool("force") {
				return usagef("release breaks a lock that somebody holds: it needs --force; locker who KEY shows who that is")
			}
			return a.at(ctx, c, func(ctx context.Context, s store, key string) error {
				if c.Bool("session") && !s.sessions {
					return usagef("--session is for stores where a session holds the locks; here each has its own holder")
				}
				h, err := s.Inspect(ctx, key)
				if err != nil {
					return err
				}
				return a.forceRelease(ctx, s, key, h, c.Bool("session"))
			})
		}),
	}
}

// forceRelease breaks the lock that h shows: in a store of sessions only with the
// whole session.
func (a *app) forceRelease(ctx context.Context, s store, key string, h locker.Holding, session bool) error {
	if h.Holder == "" {
		return free(key)
	}
	owner, label := s.split(h.Holder)
	var falls string
	if s.sessions {
		n, err := s.heldBy(ctx, h.Holder)
		if err != nil {
			return err
		}
		if falls = fmt.Sprintf("%d locks", n); n == 1 {
			falls = "1 lock"
		}
		if !session {
			return usagef("%s is held by a session, %s, which holds %s: it can only be ended as a whole, by --session", plain(key), owner, falls)
		}
	}
	broken, err := s.ForceRelease(ctx, key, h.Holder)
	switch {
	case err != nil:
		return err
	case !broken:
		return &exitError{exitChanged, fmt.Errorf("%s is no longer held by %s, and was left alone", plain(key), owner)}
	case session:
		fmt.Fprintf(a.out, "ended the session that held %s, %s: %s fell\n", plain(key), owner, falls)
	default:
		fmt.Fprintf(a.out, "broke %s, held by %s, label %s, remaining %s\n", plain(key), owner, label, remaining(h))
	}
	return nil
}

// at opens the store, and hands it on with the one key that the arguments name.
func (a *app) at(ctx context.Context, c *cli.Command, do func(context.Context, store, string) error) error {
	args := words(c)
	if len(args) != 1 {
		return usagef("%s takes one KEY, not %d", c.Name, len(args))
	}
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	l, err := a.open(ctx, c)
	if err != nil {
		return err
	}
	defer a.closeNow(l)
	return do(ctx, asStore(l), args[0])
}

// store is what who, ls and release look at.
type store struct {
	locker.Inspector
	sessions bool // the holders are sessions, with many locks each
}

func asStore(l locker.Locker) store {
	return store{l.(locker.Inspector), infoOf(l).Can.Has(locker.CapSessionHolder)}
}

// heldBy counts the holder's locks.
func (s store) heldBy(ctx context.Context, holder string) (int, error) {
	keys := make(map[string]bool) // one may be listed more than once
	err := s.List(ctx, func(key string, h locker.Holding) bool {
		if h.Holder == holder {
			keys[key] = true
		}
		return true
	})
	return len(keys), err
}

// split parts the owner and the label of a holder. The holder of another library may
// be any text. A session has no label.
func (s store) split(holder string) (owner, label string) {
	owner, label, ok := strings.Cut(holder, " ")
	switch {
	case s.sessions:
		return plain(holder), "-"
	case !ok:
		return plain(owner), "-"
	}
	return plain(owner), plain(label)
}

func free(key string) error { return &exitError{exitFree, fmt.Errorf("%s is free", plain(key))} }

func remaining(h locker.Holding) string {
	if h.Remaining == 0 {
		return "-"
	}
	return h.Remaining.Round(time.Millisecond).String()
}

func token(h locker.Holding) string {
	if h.Token == 0 {
		return "-"
	}
	return strconv.FormatUint(h.Token, 10)
}

// plain shows a text that may come from anybody: as it is, or quoted if it could
// be taken for something else, or does things to a terminal.
func plain(s string) string {
	odd := func(r rune) bool {
		return r == '"' || r == unicode.ReplacementChar || r != ' ' && !unicode.IsPrint(r)
	}
	if s == "" || s == "-" || s != strings.TrimSpace(s) || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}
