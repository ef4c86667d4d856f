package testenv

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startOwner runs this test binary as the owner of a server; see TestMain. It
// returns its standard input, and the server's address and process id.
func startOwner(t *testing.T, cmd *exec.Cmd, kind string) (in io.Closer, addr string, pid int) {
	t.Helper()
	// With -race a program that exits sleeps for a second first.
	cmd.Env = append(os.Environ(), append(cmd.Env, asOwner+"="+kind, "GORACE=atexit_sleep_ms=0")...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscan(line, &addr, &pid)
	require.NoError(t, err)
	return in, addr, pid
}

func TestServers_dieWithTheirOwner(t *testing.T) {
	for kind, orSkip := range map[string]func(*testing.T){
		ownsRedis: func(t *testing.T) { start(t, nil) },
		ownsEtcd:  func(t *testing.T) { startOneEtcd(t, nil) },
	} {
		for name, end := range map[string]func(*exec.Cmd, io.Closer) error{
			"killed":  func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Kill() },
			"exiting": func(_ *exec.Cmd, in io.Closer) error { return in.Close() },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				orSkip(t)
				ownTemp(t) // nobody removes that server's directory
				cmd := exec.Command(os.Args[0])
				in, _, pid := startOwner(t, cmd, kind)
				require.True(t, alive(pid))
				require.NoError(t, end(cmd, in))
				require.Eventually(t, func() bool { return !alive(pid) }, 10*time.Second, 10*time.Millisecond, "it outlived its owner")
			})
		}
	}
}

// To Linux a child's parent is a thread, and Go ends a thread whose goroutine ends
// locked to it.
func TestRedis_outlivesTheThreadThatCalledStart(t *testing.T) {
	type started struct {
		r   *Redis
		err error
		tid int
	}
	c := make(chan started, 1)
	var callFromADyingThread func()
	callFromADyingThread = func() {
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			// The main thread never ends. While it is held here, others are not on it.
			defer runtime.UnlockOSThread()
			over := make(chan struct{})
			go func() { defer close(over); callFromADyingThread() }()
			<-over
			return
		}
		r, err := StartRedis(t.Context(), nil)
		c <- started{r, err, syscall.Gettid()}
	}
	go callFromADyingThread()
	s := <-c
	if Skippable(s.err) {
		t.Skip(s.err)
	}
	require.NoError(t, s.err)
	defer func() { assert.NoError(t, s.r.Stop()) }()
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", s.tid))
		return os.IsNotExist(err)
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, s.r.Ping(within(t)))
	assert.NotZero(t, s.r.PID())
}

func TestServers_workForAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("not root: every other test of this package shows it")
	}
	const nobody = 65534
	for kind, orSkip := range map[string]func(*testing.T){
		ownsRedis:    func(t *testing.T) { start(t, nil) },
		ownsPostgres: func(t *testing.T) { requirePostgres(t) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			orSkip(t)
			// A directory that the user can reach, with the test binary in it: go test
			// builds that where only its own user may look.
			dir := openDir(t)
			require.NoError(t, os.Chown(dir, nobody, nobody))
			program := filepath.Join(dir, "owner")
			binary, err := os.ReadFile(os.Args[0])
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(program, binary, 0o755))

			cmd := exec.Command(program)
			cmd.Dir = dir
			cmd.Env = []string{"TMPDIR=" + dir, "HOME=" + dir}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			in, addr, _ := startOwner(t, cmd, kind)
			conn, err := dial(within(t), "tcp", addr)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			require.NoError(t, in.Close())
			require.NoError(t, cmd.Wait())
			removeOwned(t, dir)
		})
	}
}
