package pglock

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-locker/locker"
)

const (
	maxNamespaceBytes = 512
	maxSpread         = 64
	defaultMaxLocks   = 1000
)

// Config configures a Locker on advisory locks. A nil *Config stands for the defaults.
type Config struct {
	locker.Config

	// Namespace is a part of what the numbers of the locks are made of: Lockers exclude each
	// other if it is the same. It is valid UTF-8 without NUL, of at most 512 bytes.
	Namespace string

	// Sequence is the sequence that the tokens come from, locker_token if it is empty; with
	// two parts it is in a schema, else where the role's search_path leads.
	Sequence pgx.Identifier

	// Create has New make the sequence if it is missing, which takes the right to. Without
	// it, a missing sequence is an error that shows the statement.
	Create bool

	// ClockToken takes the tokens from the server's clock, for a role that has no
	// sequence: they do not rise if that clock is set back. All Lockers of a database have
	// to agree: tokens of the two kinds do not compare. So it is an error if there is a
	// sequence.
	ClockToken bool

	// Sessions is over how many sessions the locks are spread, by their keys: one that is
	// lost takes its locks with it. Zero: 1. At most 64. Each TTL has sessions of its own.
	Sessions int

	// MaxLocks is how many locks the Locker takes at a time: the server's lock table has
	// room for max_locks_per_transaction × max_connections of them, by default 6,400, and
	// all its sessions share it. One more is an error. Those that waiters get on sessions of
	// their own (BlockedWaiters) are not counted. Zero: 1,000.
	MaxLocks int

	// RestartGrace is for how long after a start of the server, which ends all sessions,
	// nothing is granted: a holder who was paused or cut off at that moment has not heard
	// of it, and believes in his lock until its Deadline. So it has to be as long as the
	// longest TTL of any Locker of the namespace; locks with a longer one are not covered.
	// A server that has started before the sequence of the tokens was made has no such
	// holders. From a millisecond to 20 days. Zero: the TTL of the locker.Config, or its
	// default.
	RestartGrace time.Duration

	// BlockedWaiters has waiters wait on the server, in its line: first come, first
	// served, and at once when a holder crashes. Each key that this Locker waits for takes
	// a session then, and keeps it while the lock is held. It has a price for the whole
	// database: a session that waits keeps its snapshot, so CREATE INDEX CONCURRENTLY and
	// its like wait for it, and VACUUM does not remove what was deleted since; and whoever
	// holds such a lock and does that himself is in a deadlock, which the server ends with
	// an error.
	BlockedWaiters bool
}

// New returns a Locker on advisory locks. Its sessions are its own: they are made with the
// settings of pool, which also serves to look at locks for operators, and never closed. pool
// has to reach the server directly, or through a pooler that keeps a session for its
// client; another one is an error that names the way out. It blocks for a few requests,
// until ctx ends. Bad settings are locker.ErrInvalid, before anything is sent.
func New(ctx context.Context, pool *pgxpool.Pool, cfg *Config) (locker.Locker, error) {
	return newLocker(ctx, pool, cfg, nil)
}

// newLocker is New for a pool that owned closes.
func newLocker(ctx context.Context, pool *pgxpool.Pool, cfg *Config, owned func()) (locker.Locker, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	b, err := newAdvisory(ctx, pool, cfg)
	if err != nil {
		return nil, err
	}
	b.owned = owned
	if cfg.BlockedWaiters {
		return withBackend(b.blocked(), &cfg.Config)
	}
	return withBackend(b, &cfg.Config)
}

// withBackend is locker.New, and ends b if that fails.
func withBackend(b interface {
	locker.Backend
	locker.Closer
}, cfg *locker.Config) (locker.Locker, error) {
	l, err := locker.New(b, cfg)
	if err != nil {
		_ = b.Close(context.Background())
		return nil, err
	}
	return l, nil
}

// NewBackend returns the Backend of New, for wrapping it. Of cfg it uses all but the
// embedded locker.Config, except for its TTL: the first session is made for that.
func NewBackend(ctx context.Context, pool *pgxpool.Pool, cfg *Config) (locker.Backend, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	b, err := newAdvisory(ctx, pool, cfg)
	switch {
	case err != nil:
		return nil, err
	case cfg.BlockedWaiters:
		return b.blocked(), nil
	}
	return b, nil
}

func newAdvisory(ctx context.Context, pool *pgxpool.Pool, cfg *Config) (*advisory, error) {
	if err := validNamespace(cfg.Namespace); err != nil {
		return nil, err
	}
	sequence, err := nameOr("Sequence", cfg.Sequence, "locker_token")
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, invalidf("no Postgres pool")
	case cfg.Sessions < 0 || cfg.Sessions > maxSpread:
		return nil, invalidf("%d sessions: between 1 and %d are possible, and 0 stands for 1", cfg.Sessions, maxSpread)
	case cfg.MaxLocks < 0:
		return nil, invalidf("MaxLocks %d is negative", cfg.MaxLocks)
	}
	grace, err := restartGrace(cfg.RestartGrace, cfg.TTL)
	if err != nil {
		return nil, err
	}
	ttl := max(cmp.Or(cfg.TTL, locker.DefaultTTL), minSessionTTL)
	c := newConnector(pool, grace)
	ss := newSessions(c, cfg)
	token, err := c.tokens(ctx, sequence, cfg.ClockToken, cfg.Create)
	if err == nil {
		_, err = ss.session(ctx, ttl, 0) // is there for the first lock
	}
	if err != nil {
		return nil, errors.Join(err, ss.close(ctx))
	}
	number := func(key string) int64 { return Key(cfg.Namespace, key) }
	return &advisory{
		sessions:  ss,
		inspector: &inspector{pool: pool, number: number},
		listener:  newListener(c, number, true),
		take:      takeBy(token),
		token:     token,
		clock:     cfg.ClockToken,
	}, nil
}

// restartGrace is the setting, or what stands for none.
func restartGrace(grace, ttl time.Duration) (time.Duration, error) {
	if grace != 0 && (grace < locker.MinTTL || grace > locker.MaxTTL) {
		return 0, invalidf("RestartGrace %v is not between %v and %v", grace, locker.MinTTL, locker.MaxTTL)
	}
	return cmp.Or(grace, ttl, locker.DefaultTTL), nil
}

func validNamespace(namespace string) error {
	switch {
	case len(namespace) > maxNamespaceBytes:
		return invalidf("namespace of %d bytes, at most %d are allowed", len(namespace), maxNamespaceBytes)
	case !utf8.ValidString(namespace):
		return invalidf("namespace %q is not valid UTF-8", namespace)
	case strings.ContainsRune(namespace, 0):
		return invalidf("namespace %q contains a NUL byte", namespace)
	}
	return nil
}
