package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// program is the built command.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "locker-command-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "locker")
	build := []string{"build", "-o", program}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		build = append(build, "-race")
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // it would sleep for a second first
	}
	if out, err := exec.Command("go", append(build, ".")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup, as what is started here would be; what is caught is not handed on
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	goleak.VerifyTestMain(m, append(testenv.Leaving, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))...)
}

// patience is what an end that has to come gets, on a busy machine.
const patience = 20 * time.Second

// world is a server, and the keys of one test on it.
type world struct {
	t   *testing.T
	srv *testenv.Redis
	url string // with a prefix
}

func newWorld(t *testing.T, settings ...string) *world {
	t.Helper()
	// One that keeps what it is told is no reason for a warning.
	srv, err := testenv.StartRedis(t.Context(), &testenv.RedisConfig{AppendOnly: true, Settings: settings})
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srv.Stop()) })
	return &world{t, srv, srv.URL() + "?prefix=test:"}
}

// locker is another user of the server.
func (w *world) locker() locker.Locker {
	w.t.Helper()
	l, err := locker.Open(w.t.Context(), w.url)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = l.Close(ended) // the server may be gone
	})
	return l
}

func (w *world) hold(key string, opts ...locker.Option) locker.Lock {
	w.t.Helper()
	k, err := w.locker().TryAcquire(w.t.Context(), key, opts...)
	require.NoError(w.t, err)
	return k
}

func (w *world) holder(key string) locker.Holding {
	w.t.Helper()
	h, err := w.locker().(locker.Inspector).Inspect(w.t.Context(), key)
	require.NoError(w.t, err)
	return h
}

func (w *world) requireFree(key string) {
	w.t.Helper()
	require.Empty(w.t, w.holder(key), "the key is still taken")
}

func (w *world) redis() *redis.Client {
	w.t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: w.srv.Addr()})
	w.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// ended is what a program that has ended left behind.
type ended struct {
	code     int
	out, err string
	took     time.Duration
}

// shell runs a script in a real shell, where $L is the command.
func shell(t *testing.T, url, script string) ended {
	t.Helper()
	return execute(t, url, "sh", "-c", script)
}

// at runs the command with arguments that no shell has seen.
func (w *world) at(args ...string) ended {
	w.t.Helper()
	return execute(w.t, w.url, program, args...)
}

func execute(t *testing.T, url, name string, args ...string) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "L="+program, "LOCKER_URL="+url)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	cmd.WaitDelay = time.Second
	withoutTerminal(cmd)
	cmd.Cancel = func() error { return killAll(cmd) }
	began := time.Now()
	ran := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](ran); !exited {
		require.NoError(t, ran, "%s", &err)
	}
	require.True(t, cmd.ProcessState.Exited(), "it was ended: %v\n%s%s", cmd.ProcessState, &out, &err)
	return ended{cmd.ProcessState.ExitCode(), out.String(), err.String(), time.Since(began)}
}

func TestVersion_isThatOfTheBuild(t *testing.T) {
	e := shell(t, "", `"$L" --version`)
	e.requireCode(t, 0)
	info, ok := debug.ReadBuildInfo()
	require.True(t, ok)
	assert.Regexp(t, `^locker \S+, `+info.GoVersion+`\n$`, e.out)
	assert.Empty(t, e.err)
}

func (e ended) requireCode(t *testing.T, code int, saying ...string) {
	t.Helper()
	require.Equal(t, code, e.code, "%s%s", e.out, e.err)
	for _, s := range saying {
		assert.Contains(t, e.err, s)
	}
}

// oneLineEach asserts that standard error is made of messages of the command.
func (e ended) oneLineEach(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(e.err) {
		assert.True(t, strings.HasPrefix(line, "locker: "), line)
	}
}
