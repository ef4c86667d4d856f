//go:build unix

package testenv

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start is StartRedis for tests: skipped or failed without a server, stopped at
// the end.
func start(t *testing.T, cfg *RedisConfig) *Redis {
	t.Helper()
	r, err := StartRedis(t.Context(), cfg)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Stop()) })
	return r
}

// within is a ctx with what an answer of a live server takes at most.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// do sends one inline command and returns the first line of the answer.
func do(t *testing.T, r *Redis, command string) string {
	t.Helper()
	conn, err := dial(within(t), "tcp", r.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Write([]byte(command + "\r\n"))
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

func TestRedis_startsWithItsOwnPortAndDirectory(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	assert.Equal(t, "redis://"+a.Addr()+"/0", a.URL())
	assert.NotEqual(t, a.Addr(), b.Addr())
	assert.NotEqual(t, a.PID(), b.PID())
	require.NoError(t, a.Ping(within(t)))
	require.NoError(t, b.Ping(within(t)))
	assert.Equal(t, "+OK", do(t, a, "SET k 1"))
	assert.Equal(t, "$-1", do(t, b, "GET k"), "a key of one is in the other")
}

func TestRedis_takesSettings(t *testing.T) {
	acl := filepath.Join(t.TempDir(), "users.acl")
	require.NoError(t, os.WriteFile(acl, []byte("user default off\nuser app on >secret ~* &* +@all\n"), 0o600))
	r := start(t, &RedisConfig{Settings: []string{"aclfile " + acl}})
	assert.Contains(t, do(t, r, "GET k"), "-NOAUTH")
	assert.Equal(t, "+OK", do(t, r, "AUTH app secret"))
}

func TestRedis_aBadSettingIsAnErrorThatTellsWhatRedisSaid(t *testing.T) {
	tmp := ownTemp(t)
	_, err := StartRedis(t.Context(), &RedisConfig{Settings: []string{"no-such-setting 1"}})
	if Skippable(err) {
		t.Skip(err)
	}
	require.ErrorContains(t, err, "no-such-setting")
	assertEmpty(t, tmp)
}

func TestRedis_aPortThatWasTakenIsNoticed(t *testing.T) {
	r := start(t, nil)
	require.NoError(t, r.Kill())
	l, err := net.Listen("tcp4", r.Addr())
	require.NoError(t, err)
	defer l.Close()
	require.ErrorIs(t, r.Restart(within(t)), errPortTaken)
	assert.Zero(t, r.PID())

	require.NoError(t, l.Close())
	require.NoError(t, r.Restart(within(t)), "a Restart that failed can be repeated")
}

func TestRedis_isSilentWhilePausedAndAnswersAfterResume(t *testing.T) {
	r := start(t, nil)
	conn, err := dial(within(t), "tcp", r.Addr())
	require.NoError(t, err)
	defer conn.Close()

	require.NoError(t, r.Pause())
	_, err = conn.Write([]byte("PING\r\n"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	answer := make([]byte, len("+PONG\r\n"))
	_, err = conn.Read(answer)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a paused server answered")

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Ping(ctx), context.DeadlineExceeded)

	require.NoError(t, r.Resume())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Read(answer)
	require.NoError(t, err)
	assert.Equal(t, "+PONG\r\n", string(answer), "what was sent during the pause is answered after it")
}

func TestRedis_killAndRestartKeepAppendOnlyData(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  *RedisConfig
		want string
	}{
		"append only": {&RedisConfig{AppendOnly: true}, "$1"},
		"default":     {nil, "$-1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, tc.cfg)
			addr, pid := r.Addr(), r.PID()
			require.Equal(t, "+OK", do(t, r, "SET k 1"))

			require.NoError(t, r.Kill())
			assert.Zero(t, r.PID())
			require.Error(t, r.Ping(within(t)))
			require.ErrorIs(t, r.Pause(), ErrNotRunning)
			require.NoError(t, r.Kill(), "killing it again")

			require.NoError(t, r.Restart(within(t)))
			assert.Equal(t, addr, r.Addr())
			assert.NotEqual(t, pid, r.PID())
			assert.Equal(t, tc.want, do(t, r, "GET k"))
		})
	}
}

func TestRedis_restartOfALiveServerIsOrderly(t *testing.T) {
	r := start(t, &RedisConfig{Settings: []string{"save 3600 1"}})
	require.Equal(t, "+OK", do(t, r, "SET k 1"))
	require.NoError(t, r.Pause())
	require.NoError(t, r.Restart(within(t)), "also when it is paused")
	assert.Equal(t, "$1", do(t, r, "GET k"), "Redis saves when it is asked to end")
}

func TestStartRedis_endsWithItsContext(t *testing.T) {
	cause := errors.New("enough")
	dead, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := StartRedis(dead, nil)
	require.ErrorIs(t, err, cause)

	// A program that never gets ready.
	tmp, bin := ownTemp(t), t.TempDir()
	script := "#!/bin/sh\necho loading\nexec sleep 60\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "redis-server"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	_, err = StartRedis(ctx, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "loading")
	assertEmpty(t, tmp)
}

func TestRedis_stopLeavesNothing(t *testing.T) {
	tmp := ownTemp(t)
	r := start(t, nil)
	pid := r.PID()
	require.NoError(t, r.Pause(), "a paused server can be stopped too")
	began := time.Now()
	require.NoError(t, r.Stop())
	assert.Less(t, time.Since(began), stopGrace, "it had to be killed")
	assertEmpty(t, tmp)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "the process is left")

	require.NoError(t, r.Stop(), "stopping it again")
	assert.Zero(t, r.PID())
	for _, err := range []error{r.Pause(), r.Resume(), r.Kill(), r.Restart(within(t))} {
		require.ErrorIs(t, err, ErrNotRunning)
	}
}

func TestStart_saysWhatIsMissing(t *testing.T) {
	master := start(t, nil)
	tmp := ownTemp(t)
	t.Setenv("PATH", t.TempDir())
	for name, start := range map[string]func(context.Context) error{
		"one":      func(ctx context.Context) error { _, err := StartRedis(ctx, nil); return err },
		"replica":  func(ctx context.Context) error { _, err := StartReplica(ctx, master, nil); return err },
		"sentinel": func(ctx context.Context) error { _, err := StartSentinel(ctx, nil); return err },
		"cluster":  func(ctx context.Context) error { _, err := StartCluster(ctx, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			err := start(t.Context())
			require.ErrorIs(t, err, ErrNotInstalled)
			require.ErrorContains(t, err, "redis-server")
			require.ErrorContains(t, err, "make deps")

			t.Setenv("LOCKER_TEST_REQUIRE", "")
			assert.True(t, Skippable(err))
			t.Setenv("LOCKER_TEST_REQUIRE", "1")
			assert.False(t, Skippable(err))
			assertEmpty(t, tmp)
		})
	}
}

func TestAnyRedis_startsAServerUnlessOneWasGiven(t *testing.T) {
	own := start(t, nil)

	t.Setenv("LOCKER_TEST_REDIS_URL", "")
	r, err := AnyRedis(t.Context())
	require.NoError(t, err)
	assert.NotEqual(t, own.Addr(), r.Addr())
	require.NoError(t, r.Stop())

	given := "redis://user:secret@" + own.Addr() + "/3"
	t.Setenv("LOCKER_TEST_REDIS_URL", given)
	r, err = AnyRedis(t.Context())
	require.NoError(t, err)
	assert.Equal(t, given, r.URL())
	assert.Equal(t, own.Addr(), r.Addr())
	assert.Zero(t, r.PID())
	for _, err := range []error{r.Pause(), r.Resume(), r.Kill(), r.Restart(within(t))} {
		require.ErrorIs(t, err, ErrNotOurs)
	}
	require.NoError(t, r.Stop())
	require.NoError(t, own.Ping(within(t)), "Stop ended a server that was given")

	require.NoError(t, own.Stop())
	for _, bad := range []string{given, "redis://:secret@%zz/", "redis:///0", "http://localhost"} {
		t.Setenv("LOCKER_TEST_REDIS_URL", bad)
		_, err = AnyRedis(within(t))
		require.Error(t, err, bad)
		assert.False(t, Skippable(err), bad)
		assert.NotContains(t, err.Error(), "secret")
	}
}

// stopLeavesNothing stops servers, of which one is paused and one was killed.
func stopLeavesNothing[S interface {
	PID() int
	Kill() error
	Pause() error
}](t *testing.T, tmp string, servers []S, stop func() error) {
	t.Helper()
	var pids []int
	for _, s := range servers {
		pids = append(pids, s.PID())
	}
	require.NoError(t, servers[0].Kill())
	require.NoError(t, servers[len(servers)-1].Pause())
	require.NoError(t, stop())
	assertEmpty(t, tmp)
	for i, pid := range pids {
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "the process is left")
		assert.Zero(t, servers[i].PID())
	}
	require.NoError(t, stop(), "stopping it again")
}

// ownTemp gives the test a directory in which StartRedis makes the server's.
func ownTemp(t *testing.T) string {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	return os.TempDir()
}

func assertEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries, "left behind")
}
