package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const confName = "redis.conf"

var redisServer = program{
	name:   "redis-server",
	ready:  []string{"Ready to accept connections", "Sentinel ID is"}, // the second is what a sentinel says
	finish: syscall.SIGTERM,
	quit:   syscall.SIGTERM,
}

// startServer starts a redis-server with these lines of redis.conf and these
// arguments, on a free port, and waits until it answers.
func startServer(ctx context.Context, conf []string, args ...string) (*Redis, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	exe, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	dir, err := os.MkdirTemp("", "locker-redis-")
	if err != nil {
		return nil, err
	}
	r := &Redis{server: server{dir: dir, program: redisServer, cmd: slices.Concat([]string{exe, confName}, args)}}
	r.answers = r.Ping
	err = r.start(ctx, func(port int) error {
		r.url = "redis://" + r.addr + "/0"
		lines := slices.Concat([]string{"bind 127.0.0.1", "port " + strconv.Itoa(port)}, conf)
		return os.WriteFile(filepath.Join(dir, confName), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// wholeMilliseconds: the servers count in these.
func wholeMilliseconds(ds ...time.Duration) error {
	for _, d := range ds {
		if d < 0 || d%time.Millisecond != 0 {
			return fmt.Errorf("testenv: %v is not a number of milliseconds", d)
		}
	}
	return nil
}
