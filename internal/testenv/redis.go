package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
)

// RedisConfig configures a private Redis. A nil *RedisConfig stands for the
// defaults: nothing is kept on disk.
type RedisConfig struct {
	// AppendOnly has every write on disk before it is answered, so that nothing
	// is lost by Kill and Restart.
	AppendOnly bool

	// Settings are further lines of redis.conf, such as "maxmemory 2mb". They
	// come last, so they win. Relative paths start in the server's directory.
	// The port and the log have to stay as they are.
	Settings []string
}

// Redis is one Redis server. It is safe for concurrent use.
type Redis struct {
	server
	url string
}

// StartRedis starts a private server and waits until it answers. ctx bounds the
// start only. Stop has to be called. If redis-server is not installed, the error
// matches ErrNotInstalled.
func StartRedis(ctx context.Context, cfg *RedisConfig) (*Redis, error) {
	if cfg == nil {
		cfg = &RedisConfig{}
	}
	return startServer(ctx, cfg.lines())
}

// lines are the lines of redis.conf that the config stands for, followed by more and
// by the config's own.
func (cfg *RedisConfig) lines(more ...string) []string {
	lines := []string{
		`save ""`,
		"rdb-del-sync-files yes", // nor does what was written for a replica stay
		"repl-diskless-sync yes",
		"repl-diskless-sync-delay 0", // no wait for more replicas
	}
	if cfg.AppendOnly {
		lines = append(lines, "appendonly yes", "appendfsync always")
	}
	return slices.Concat(lines, more, cfg.Settings)
}

// AnyRedis is for tests that do without Pause, Kill and Restart and share their
// server with others: it hands back the one that LOCKER_TEST_REDIS_URL names, for
// which those methods return ErrNotOurs and Stop does nothing. If the variable is
// not set, it is StartRedis without a config. A server that was named and cannot
// be reached is an error, and no reason to skip.
func AnyRedis(ctx context.Context) (*Redis, error) {
	raw := os.Getenv("LOCKER_TEST_REDIS_URL")
	if raw == "" {
		return StartRedis(ctx, nil)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		// Without the URL: there may be a password in it.
		return nil, errors.New("testenv: LOCKER_TEST_REDIS_URL is not a URL such as redis://localhost:6379/0")
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	r := &Redis{server: server{addr: net.JoinHostPort(u.Hostname(), port)}, url: raw}
	conn, err := dial(ctx, "tcp", r.addr)
	if err != nil {
		return nil, fmt.Errorf("testenv: the server of LOCKER_TEST_REDIS_URL: %w", err)
	}
	return r, conn.Close()
}

// URL is the server's address as a URL, with the database: "redis://127.0.0.1:port/0".
// For a server that was given it is the URL that was, credentials and all.
func (r *Redis) URL() string { return r.url }

// Ping is nil if the server answers, be it to ask for a password, and is not
// loading its data. It speaks plain TCP and blocks until the answer or ctx's end.
func (r *Redis) Ping(ctx context.Context) error { return ping(ctx, "tcp", r.addr) }
