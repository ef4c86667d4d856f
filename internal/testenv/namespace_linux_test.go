package testenv

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startNamespace(t *testing.T) *Namespace {
	t.Helper()
	began := time.Now()
	n, err := StartNamespace(t.Context())
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("namespace started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, n.Stop()) })
	return n
}

// linkExists tells whether this machine has a network of that name.
func linkExists(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// The host of a client vanishes while it holds a lock: by default the server keeps the
// session, and so the lock, for hours. Keepalives end it, but not while something that
// was sent is not acknowledged: that is up to tcp_user_timeout.
func TestNamespace_ofAClientThatVanishesTheServerFreesTheLockWhenItIsTold(t *testing.T) { //nolint:tparallel // C107; they share the cable
	t.Parallel()
	n := startNamespace(t)
	p := startPg(t, &PostgresConfig{Fast: true, Listen: []netip.Prefix{n.Host()}})
	at, err := p.At(p.URL(), n.Host().Addr())
	require.NoError(t, err)
	cfg, err := pgconn.ParseConfig(at)
	require.NoError(t, err)
	cfg.DialFunc = n.Dial
	for name, then := range map[string]func() error{
		"it is idle":            func() error { return nil },
		"a notification is due": func() error { return p.Exec(within(t), "NOTIFY waiters") },
	} {
		t.Run(name, func(t *testing.T) {
			client, err := pgconn.ConnectConfig(within(t), cfg)
			require.NoError(t, err)
			defer client.Conn().Close() // the server has closed it, and could not say so
			_, err = client.Exec(within(t), "SET tcp_keepalives_idle = 1; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 2;"+
				"SET tcp_user_timeout = 3000; LISTEN waiters; SELECT pg_advisory_lock(1)").ReadAll()
			require.NoError(t, err)
			from, err := p.value(within(t), "SELECT client_addr FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory'")
			require.NoError(t, err)
			assert.Equal(t, n.Addr().String(), from)

			require.NoError(t, n.Cut(within(t)))
			began := time.Now()
			require.NoError(t, then())
			require.NoError(t, p.Exec(within(t), "SELECT pg_advisory_lock(1)"))
			took := time.Since(began)
			t.Logf("the lock was free %v after its holder had vanished", took)
			assert.Less(t, took, 5*time.Second)
			assert.Greater(t, took, time.Second, "the server was told by something else")
			_, err = n.Dial(within(t), "tcp", p.Addr())
			require.Error(t, err)
			require.NoError(t, n.Mend(within(t)))
		})
	}
}

func TestNamespace_hasANetworkOfItsOwnAndLeavesNothing(t *testing.T) {
	t.Parallel()
	n, other := startNamespace(t), startNamespace(t)
	assert.False(t, n.Host().Overlaps(other.Host()))
	assert.NotEqual(t, n.link, other.link)
	used, err := usedPrefixes()
	require.NoError(t, err)
	assert.Contains(t, used, n.Host())
	assert.Contains(t, used, n.Host().Masked(), "routes are not seen")

	var inside []byte
	require.NoError(t, n.Inside(func() (err error) {
		inside, err = exec.Command("ip", "-oneline", "address").Output()
		return err
	}))
	assert.Contains(t, string(inside), n.Addr().String()+"/30")
	assert.NotContains(t, string(inside), n.link)
	assert.True(t, linkExists(n.link), "this thread is in the namespace")

	pid := n.holder.pid()
	require.NoError(t, n.Stop())
	assert.False(t, linkExists(n.link))
	assert.False(t, alive(pid))
	require.NoError(t, n.Stop(), "stopping it again")
	require.ErrorIs(t, n.Cut(within(t)), ErrNotRunning)
	assert.True(t, linkExists(other.link))
}

func TestNamespace_diesWithItsOwner(t *testing.T) {
	startNamespace(t) // or skip
	cmd := exec.Command(os.Args[0])
	_, link, pid := startOwner(t, cmd, ownsNamespace)
	require.True(t, linkExists(link))
	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool { return !linkExists(link) && !alive(pid) }, 10*time.Second, 10*time.Millisecond, "it outlived its owner")
}

// Only who could have one fails without.
func TestStartNamespace_isSkippedWithoutTheRightToIt(t *testing.T) {
	t.Setenv("LOCKER_TEST_REQUIRE", "1")
	assert.Equal(t, os.Geteuid() != 0, Skippable(ErrNoNamespace))
	t.Setenv("LOCKER_TEST_REQUIRE", "")
	assert.True(t, Skippable(ErrNoNamespace))
	if os.Geteuid() == 0 {
		t.Setenv("PATH", t.TempDir())
		_, err := StartNamespace(t.Context())
		require.ErrorIs(t, err, ErrNotInstalled)
		return
	}
	_, err := StartNamespace(t.Context())
	require.ErrorIs(t, err, ErrNoNamespace)
	require.ErrorContains(t, err, "root")
}
