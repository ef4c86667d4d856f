//go:build linux || darwin

package custombackend

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
)

// insideEnv names the directory that a copy of this program opens, to stay in a section
// until its end.
const insideEnv = "CUSTOMBACKEND_INSIDE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(insideEnv); dir != "" {
		stayInside(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func stayInside(dir string) {
	d, err := openDirectory(context.Background(), dir)
	if err == nil {
		err = d.exclusive(context.Background(), func(section) error {
			fmt.Println("inside")
			_, err := io.ReadAll(os.Stdin) // as long as the test lives, at most
			return err
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startInside returns when another process is in a section of dir.
func startInside(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	_, err = io.ReadFull(out, make([]byte, len("inside")))
	require.NoError(t, err)
	return cmd
}

func open(t *testing.T, dir string) *directory {
	t.Helper()
	d, err := openDirectory(t.Context(), dir)
	require.NoError(t, err)
	return d
}

func request(key string) locker.Request {
	return locker.Request{Key: key, Owner: uuid.NewString(), TTL: time.Minute}
}

func take(t *testing.T, d *directory, req locker.Request) locker.Grant {
	t.Helper()
	g, err := d.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	return g
}

func requireLost(t *testing.T, err error, reason locker.Reason) {
	t.Helper()
	lost := (*locker.LostError)(nil)
	require.ErrorAs(t, err, &lost)
	require.Equal(t, reason, lost.Reason)
}

func TestSection_isFreeAfterAKillInTheMiddle(t *testing.T) { // C53
	d := open(t, t.TempDir())
	cmd := startInside(t, d.path)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	g, err := d.TryAcquire(ctx, request("k"))
	require.NoError(t, err)
	require.NoError(t, g.Release(ctx))
}

func TestSection_aStoppedProcessIsAnOutageAndNotAHolder(t *testing.T) { // G7, R2
	d := open(t, t.TempDir())
	mine := take(t, d, request("mine"))
	cmd := startInside(t, d.path)
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	calls := []func() error{
		func() error { g, err := d.TryAcquire(ctx, request("k")); require.Nil(t, g); return err },
		func() error { _, err := mine.Renew(ctx, time.Minute); return err },
		func() error { return mine.Release(ctx) },
	}
	errs := make(chan error)
	for _, call := range calls { // one of them asks the kernel, the others stand behind it
		go func() { errs <- call() }()
	}
	for range calls {
		err := <-errs
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.NotErrorIs(t, err, locker.ErrLost)
	}

	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.NoError(t, mine.Release(t.Context()))
}

func TestSection_isForOneAtATime(t *testing.T) { // G1, among goroutines and open directories
	path := t.TempDir()
	var inside atomic.Int32
	errs := make(chan error)
	const each, dirs, goroutines = 50, 3, 4
	for range dirs {
		d := open(t, path)
		for range goroutines {
			go func() {
				for range each {
					errs <- d.exclusive(context.Background(), func(section) error {
						defer inside.Add(-1)
						if n := inside.Add(1); n != 1 {
							return fmt.Errorf("%d at once", n)
						}
						return nil
					})
				}
			}()
		}
	}
	for range each * dirs * goroutines {
		require.NoError(t, <-errs)
	}
}

// The suite cannot see this one: see CONTRIBUTING.md.
func TestTryAcquire_recognisesItsOwnOwner(t *testing.T) { // G4, C02
	d := open(t, t.TempDir())
	req := request("k")
	first := take(t, d, req)
	again := take(t, open(t, d.path), req)
	require.Equal(t, first.Token(), again.Token())
	_, err := d.TryAcquire(t.Context(), request("k"))
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, again.Release(t.Context()))
	requireLost(t, first.Release(t.Context()), locker.ReasonExpired)
}

func TestTryAcquire_refusesModesItLacks(t *testing.T) {
	d := open(t, t.TempDir())
	for _, mode := range []locker.Mode{locker.ModeShared, locker.ModeLimited} {
		req := request("k")
		req.Mode, req.Limit = mode, 1
		g, err := d.TryAcquire(t.Context(), req)
		require.Nil(t, g)
		require.ErrorIs(t, err, locker.ErrUnsupported)
	}
}

func TestGrant_renewalNeverShortensAndAnExtendDoes(t *testing.T) { // H1
	d := open(t, t.TempDir())
	g := take(t, d, request("k"))
	remaining := func() time.Duration {
		shown, err := d.Inspect(t.Context(), "k")
		require.NoError(t, err)
		return shown.Remaining
	}
	_, err := g.Renew(t.Context(), time.Second)
	require.NoError(t, err)
	require.Greater(t, remaining(), 30*time.Second)
	_, err = d.Extend(t.Context(), g, time.Second)
	require.NoError(t, err)
	require.LessOrEqual(t, remaining(), time.Second)
}

func TestGrant_touchesNobodyElses(t *testing.T) { // H1, R1, C28, C29
	d := open(t, t.TempDir())
	req := request("k")
	old := take(t, d, req)
	done, err := d.ForceRelease(t.Context(), "k", req.Holder())
	require.NoError(t, err)
	require.True(t, done)
	_, err = old.Renew(t.Context(), time.Minute)
	requireLost(t, err, locker.ReasonExpired)
	next := take(t, d, request("k"))
	_, err = old.Renew(t.Context(), time.Minute)
	requireLost(t, err, locker.ReasonTaken)
	requireLost(t, old.Release(t.Context()), locker.ReasonTaken)
	done, err = d.ForceRelease(t.Context(), "k", req.Holder())
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, next.Release(t.Context()))
}

func TestDirectory_locksFromBeforeARestartAreOver(t *testing.T) {
	d := open(t, t.TempDir())
	old := take(t, d, request("k"))
	restarted := &directory{path: d.path, boot: uuid.NewString(), turn: make(chan struct{}, 1)}
	next := take(t, restarted, request("k"))
	require.Greater(t, next.Token(), old.Token(), "G3")
}

func TestDirectory_whatAPowerLossCutShortIsFree(t *testing.T) {
	for _, left := range []string{"", "00000000000000000001", "00000000000000000001\nboot\n1", strings.Repeat("\x00", 4096)} {
		d := open(t, t.TempDir())
		old := take(t, d, request("k"))
		require.NoError(t, os.WriteFile(d.file("k"), []byte(left), 0o600))
		next := take(t, d, request("k"))
		require.Greater(t, next.Token(), old.Token(), "G3")
		requireLost(t, old.Release(t.Context()), locker.ReasonTaken)
	}
}

func TestDirectory_tokensRiseThoughTheCounterIsLost(t *testing.T) { // G3, C127
	d := open(t, t.TempDir())
	latest := take(t, d, request("0")).Token()
	for i, damage := range []func(guard string) error{
		func(guard string) error { return os.Truncate(guard, 0) },
		func(guard string) error { return os.Truncate(guard, 5) },
		func(guard string) error { return os.WriteFile(guard, []byte("no number, and longer than one"), 0o600) },
		func(string) error { return nil },
	} {
		require.NoError(t, damage(filepath.Join(d.path, "guard")))
		token := take(t, d, request(fmt.Sprint(i+1))).Token()
		require.Greater(t, token, latest)
		latest = token
	}
}

func TestDirectory_tokensRiseThoughTheWallClockIsSetBack(t *testing.T) { // G3
	d := open(t, t.TempDir())
	const future = 1 << 62
	guard := fmt.Appendf(nil, "%020d", uint64(future)) // minted before it was set back
	require.NoError(t, os.WriteFile(filepath.Join(d.path, "guard"), guard, 0o600))
	require.Equal(t, uint64(future+1), take(t, d, request("a")).Token())
	require.Equal(t, uint64(future+2), take(t, d, request("b")).Token())
}

func TestOpen_removesWhatDeadHoldersLeft(t *testing.T) { // C72, C123
	d := open(t, t.TempDir())
	over := request("over")
	over.TTL = time.Nanosecond
	take(t, d, over)
	take(t, d, request("held"))
	require.FileExists(t, d.file("over"))
	open(t, d.path)
	require.NoFileExists(t, d.file("over"))
	require.FileExists(t, d.file("held"))
}

func TestEntry_isReadAsItWasWritten(t *testing.T) { // K1
	d := open(t, t.TempDir())
	req := request(" k\nl\n\n")
	req.Label = "host 7, pid 42"
	take(t, d, req)
	e, err := readFile(d.file(req.Key))
	require.NoError(t, err)
	require.Equal(t, req.Holder(), e.Holder)
	require.Equal(t, req.Owner, e.owner())
	require.Equal(t, req.Key, e.Key)
}

func TestNew_saysAtOnceThatTheDirectoryCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := New(t.Context(), file, nil)
	require.Error(t, err)
}

func TestAcquire_doesNotWaitForADirectoryThatIsGone(t *testing.T) { // W4
	dir := filepath.Join(t.TempDir(), "locks")
	l, err := New(t.Context(), dir, nil)
	require.NoError(t, err)
	defer l.Close(context.Background())
	require.NoError(t, os.RemoveAll(dir))
	_, err = l.Acquire(t.Context(), "k")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, locker.ErrHeld)
}
