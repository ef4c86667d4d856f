package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// readyTimeout bounds a start whose ctx does not.
	readyTimeout = 30 * time.Second

	// stopGrace is what a server gets to end in an orderly way.
	stopGrace = 5 * time.Second

	// portTries bounds the search for a port that stays free until the server
	// has bound it.
	portTries = 10
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
	addr, url string
	dir, exe  string // empty for a server that was given

	mu   sync.Mutex
	proc *process // the last one started, nil after Stop
}

// StartRedis starts a private server and waits until it answers. ctx bounds the
// start only. Stop has to be called. If redis-server is not installed, the error
// matches ErrNotInstalled.
func StartRedis(ctx context.Context, cfg *RedisConfig) (*Redis, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	exe, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	if cfg == nil {
		cfg = &RedisConfig{}
	}
	dir, err := os.MkdirTemp("", "locker-redis-")
	if err != nil {
		return nil, err
	}
	r := &Redis{dir: dir, exe: exe}
	err = errPortTaken
	for try := 0; try < portTries && errors.Is(err, errPortTaken); try++ {
		if err = r.configure(cfg); err == nil {
			err = r.launch(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return r, nil
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
	r := &Redis{addr: net.JoinHostPort(u.Hostname(), port), url: raw}
	conn, err := dial(ctx, "tcp", r.addr)
	if err != nil {
		return nil, fmt.Errorf("testenv: the server of LOCKER_TEST_REDIS_URL: %w", err)
	}
	return r, conn.Close()
}

// Addr is the server's host:port. It stays the same over Restart.
func (r *Redis) Addr() string { return r.addr }

// URL is the server's address as a URL, with the database: "redis://127.0.0.1:port/0".
// For a server that was given it is the URL that was, credentials and all.
func (r *Redis) URL() string { return r.url }

// PID is the server's process id, or 0 if it does not run or was given.
func (r *Redis) PID() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc == nil || !r.proc.running() {
		return 0
	}
	return r.proc.pid()
}

// Ping is nil if the server answers, be it to ask for a password, and is not
// loading its data. It speaks plain TCP and blocks until the answer or ctx's end.
func (r *Redis) Ping(ctx context.Context) error { return ping(ctx, "tcp", r.addr) }

// Pause stops the server in its tracks (SIGSTOP): connections stay, and take what
// is sent, but nothing is answered. Where there is no such signal the error
// matches errors.ErrUnsupported.
func (r *Redis) Pause() error { return r.signal((*process).pause) }

// Resume ends a Pause (SIGCONT).
func (r *Redis) Resume() error { return r.signal((*process).resume) }

func (r *Redis) signal(send func(*process) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	if !r.proc.running() {
		return ErrNotRunning
	}
	return send(r.proc)
}

// Kill ends the server at once (SIGKILL), paused or not, and returns when it is
// gone. Restart brings it back. Killing a dead server is no error.
func (r *Redis) Kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	return r.proc.kill()
}

// Restart starts the server again, with the same port, directory and settings,
// after Kill or after ending it in an orderly way, and waits until it answers. ctx
// bounds the start.
func (r *Redis) Restart(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.proc.stop(stopGrace); err != nil {
		return err
	}
	return r.launch(ctx)
}

// Stop ends the server and removes its directory. It asks first and kills after
// 5 s. A second Stop does nothing, nor does that of a server that was given.
func (r *Redis) Stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc == nil {
		return nil
	}
	err := r.proc.stop(stopGrace)
	r.proc = nil
	return errors.Join(err, os.RemoveAll(r.dir))
}

// usable says why the server's process is out of reach. It is called with mu.
func (r *Redis) usable() error {
	switch {
	case r.dir == "":
		return ErrNotOurs
	case r.proc == nil:
		return ErrNotRunning
	}
	return nil
}

const logName = "redis.log"

// configure chooses a port and writes redis.conf.
func (r *Redis) configure(cfg *RedisConfig) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	r.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	r.url = "redis://" + r.addr + "/0"
	lines := []string{
		"bind 127.0.0.1",
		"port " + strconv.Itoa(port),
		`save ""`,
	}
	if cfg.AppendOnly {
		lines = append(lines, "appendonly yes", "appendfsync always")
	}
	lines = append(lines, cfg.Settings...)
	return os.WriteFile(filepath.Join(r.dir, "redis.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// errPortTaken: another process bound the port first.
var errPortTaken = errors.New("port is taken")

// launch starts the process and waits until it answers. On an error no process is
// left.
func (r *Redis) launch(ctx context.Context) error {
	log, err := os.Create(filepath.Join(r.dir, logName))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.exe, "redis.conf")
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
			if strings.Contains(r.log(), "Ready to accept connections") {
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

// freePort finds a port of 127.0.0.1 that nobody listens on. It keeps below the
// ports that systems give to outgoing connections (Linux: from 32768), and by
// 10,000 more, for the second port of a Redis in cluster mode. One of those could be
// taken, while the server is down, by the very client that tries to reach it, and
// Restart would fail.
func freePort() (int, error) {
	const lowest, count = 10_000, 12_000
	var err error
	for range portTries {
		port := lowest + rand.IntN(count)
		var l net.Listener
		l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

func ping(ctx context.Context, network, addr string) error {
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A deadline in the past ends the exchange when ctx does.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if strings.HasPrefix(answer, "-LOADING") {
		return errors.New(strings.TrimSpace(answer[1:]))
	}
	return nil
}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}
