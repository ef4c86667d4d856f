package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	confName = "redis.conf"
	logName  = "redis.log"
)

// readyTimeout bounds a start, or a wait, whose ctx does not.
const readyTimeout = 30 * time.Second

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
	r := &Redis{dir: dir, cmd: slices.Concat([]string{exe, confName}, args)}
	err = errPortTaken
	for try := 0; try < portTries && errors.Is(err, errPortTaken); try++ {
		if err = r.configure(conf); err == nil {
			err = r.launch(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
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

// configure chooses a port and writes redis.conf.
func (r *Redis) configure(conf []string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	r.addr = local(port)
	r.url = "redis://" + r.addr + "/0"
	lines := slices.Concat([]string{"bind 127.0.0.1", "port " + strconv.Itoa(port)}, conf)
	return os.WriteFile(filepath.Join(r.dir, confName), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// launch starts the process and waits until it answers. On an error no process is
// left.
func (r *Redis) launch(ctx context.Context) error {
	log, err := os.Create(filepath.Join(r.dir, logName))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.cmd[0], r.cmd[1:]...)
	cmd.Dir = r.dir
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := startProcess(cmd)
	if err != nil {
		return err
	}
	r.proc = proc
	if err := r.awaitReady(ctx, proc); err != nil {
		return errors.Join(fmt.Errorf("testenv: redis-server did not start: %w", err), proc.kill())
	}
	return nil
}

// awaitReady waits until the server says in its log that it has bound the port and
// loaded its data, and then answers. The log is its own: an answer alone could come
// from another server that took the port first.
func (r *Redis) awaitReady(ctx context.Context, proc *process) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			log := r.log()
			// The second is what a sentinel says.
			if strings.Contains(log, "Ready to accept connections") || strings.Contains(log, "Sentinel ID is") {
				return r.Ping(ctx)
			}
		case <-ctx.Done():
			return fmt.Errorf("%w; it said:\n%s", context.Cause(ctx), r.log())
		case <-proc.exited:
			log := r.log()
			if strings.Contains(log, "Address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("it ended and said:\n%s", log)
		}
	}
}

// log is what the server's last process has said.
func (r *Redis) log() string {
	text, err := os.ReadFile(filepath.Join(r.dir, logName))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
