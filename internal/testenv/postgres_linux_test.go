package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sharedMemorySegments are the ids of the System V segments that there are.
func sharedMemorySegments(t *testing.T) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/sysvipc/shm")
	require.NoError(t, err)
	var ids []string
	for line := range strings.Lines(string(table)) {
		ids = append(ids, strings.Fields(line)[1])
	}
	return ids
}

// sharedMemorySegment is the id of the server's.
func sharedMemorySegment(t *testing.T, p *Postgres) string {
	t.Helper()
	text, err := os.ReadFile(p.dir + "/data/postmaster.pid")
	require.NoError(t, err)
	id := strings.Fields(strings.Split(string(text), "\n")[6])[1]
	require.Contains(t, sharedMemorySegments(t), id)
	return id
}

// alive tells whether a process runs: one that nobody has reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestPostgres_stopLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*Postgres) error{
		"paused": func(p *Postgres) error { return p.Pause() },
		"killed": func(p *Postgres) error { return p.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPg(t, &PostgresConfig{Fast: true})
			pid, sharedMemory := p.PID(), sharedMemorySegment(t, p)
			connect(t, p.URL())
			children, err := childrenOf(pid)
			require.NoError(t, err)
			require.NotEmpty(t, children)

			require.NoError(t, before(p))
			began := time.Now()
			require.NoError(t, p.Stop())
			assert.Less(t, time.Since(began), stopGrace, "it had to be killed")
			assert.NoDirExists(t, p.dir)
			assert.NotContains(t, sharedMemorySegments(t), sharedMemory)
			require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "the process is left")
			for _, child := range children {
				assert.False(t, alive(child), "a child is left")
			}

			require.NoError(t, p.Stop(), "stopping it again")
			assert.Zero(t, p.PID())
			for _, err := range []error{p.Pause(), p.Resume(), p.Kill(), p.Restart(within(t))} {
				require.ErrorIs(t, err, ErrNotRunning)
			}
		})
	}
}

// Children that are paused do not miss their parent.
func TestPostgres_diesWithItsOwner(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{ownsPostgres, ownsPausedPostgres} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			requirePostgres(t)
			cmd, tmp := exec.Command(os.Args[0]), openDir(t) // nobody else removes the server's directory
			cmd.Env = []string{"TMPDIR=" + tmp}
			_, _, pid := startOwner(t, cmd, kind)
			children, err := childrenOf(pid)
			require.NoError(t, err)
			require.NotEmpty(t, children)
			require.NoError(t, cmd.Process.Kill())
			for _, each := range append(children, pid) {
				require.Eventually(t, func() bool { return !alive(each) }, 10*time.Second, 10*time.Millisecond, "it outlived its owner")
			}
			removeOwned(t, tmp)
		})
	}
}

// removeOwned removes the shared memory of a server that died with its owner, whose
// directory is in tmp.
func removeOwned(t *testing.T, tmp string) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(tmp, "locker-postgres-*"))
	require.NoError(t, err)
	for _, dir := range dirs {
		require.NoError(t, (&Postgres{server: server{dir: dir}}).removeSharedMemory())
	}
}
