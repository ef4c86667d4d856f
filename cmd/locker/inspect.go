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
			return a.inspect(ctx, c, func(ctx context.Context, key string, h locker.Holding, _ locker.Inspector) error {
				if h.Holder == "" {
					return free(key)
				}
				owner, label := split(h.Holder)
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
	out := bufio.NewWriter(a.out)
	err = l.(locker.Inspector).List(ctx, func(key string, h locker.Holding) bool {
		owner, label := split(h.Holder)
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
		Usage:        "take a key from its holder, who is told at the next renewal",
		ArgsUsage:    "--force KEY",
		OnUsageError: asIs,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "required: the holder may be at work, and the next one is let in"},
		},
		Action: action(func(ctx context.Context, c *cli.Command) error {
			if !c.Bool("force") {
				return usagef("release breaks a lock that somebody holds: it needs --force; locker who KEY shows who that is")
			}
			return a.inspect(ctx, c, a.forceRelease)
		}),
	}
}

func (a *app) forceRelease(ctx context.Context, key string, h locker.Holding, store locker.Inspector) error {
	if h.Holder == "" {
		return free(key)
	}
	owner, label := split(h.Holder)
	broken, err := store.ForceRelease(ctx, key, h.Holder)
	switch {
	case err != nil:
		return err
	case !broken:
		return &exitError{exitChanged, fmt.Errorf("%s is no longer held by %s, and was left alone", plain(key), owner)}
	}
	fmt.Fprintf(a.out, "broke %s, held by %s, label %s, remaining %s\n", plain(key), owner, label, remaining(h))
	return nil
}

// inspect looks at the one key that the arguments name, and hands on what it saw.
func (a *app) inspect(ctx context.Context, c *cli.Command, then func(context.Context, string, locker.Holding, locker.Inspector) error) error {
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
	store := l.(locker.Inspector)
	h, err := store.Inspect(ctx, args[0])
	if err != nil {
		return err
	}
	return then(ctx, args[0], h, store)
}

func free(key string) error { return &exitError{exitFree, fmt.Errorf("%s is free", plain(key))} }

// split parts the owner and the label of a holder. The holder of another library may
// be any text.
func split(holder string) (owner, label string) {
	owner, label, ok := strings.Cut(holder, " ")
	if !ok {
		return plain(owner), "-"
	}
	return plain(owner), plain(label)
}

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
