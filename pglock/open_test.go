package pglock

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// openURL opens a Locker, which the test's end closes.
func openURL(t *testing.T, raw string) locker.Locker {
	t.Helper()
	l, err := locker.Open(t.Context(), raw)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	return l
}

func infoOf(l locker.Locker) locker.Info { return l.(interface{ Info() locker.Info }).Info() }

func TestOpen_takesTheParametersOfAnAdvisoryLocker(t *testing.T) {
	database := newDatabase(t)
	pool := connect(t, database)
	exec(t, pool, "CREATE SCHEMA app")
	l := openURL(t, database+"&locker_mode=advisory&locker_create=true&locker_namespace=n&locker_sequence=app.tokens"+
		"&locker_sessions=3&locker_max_locks=2&locker_blocked_waiters=true&locker_restart_grace=5s&ttl=12s&application_name=the%20billing")
	require.True(t, infoOf(l).Can.Has(locker.CapFIFO))
	k := acquire(t, l, "k")
	require.Equal(t, 12*time.Second, k.TTL())
	require.Equal(t, value[uint64](t, pool, "SELECT last_value FROM app.tokens"), k.Token())
	require.Equal(t, "the billing [locker 12s]", value[string](t, pool, `SELECT application_name FROM pg_locks l JOIN pg_stat_activity USING (pid)
		WHERE l.locktype = 'advisory' AND l.classid::bigint << 32 | l.objid::bigint = $1`, Key("n", "k")))
	second := acquire(t, l, "second")
	_, err := l.TryAcquire(t.Context(), "third")
	require.ErrorContains(t, err, "MaxLocks")
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, second.Release(t.Context()))
}

func TestOpen_takesTheParametersOfALeaseLocker(t *testing.T) {
	database := newDatabase(t)
	pool := connect(t, database)
	l := openURL(t, database+"&locker_mode=lease&locker_create=true&locker_table=public.Locks&ttl=12s&pool_max_conns=2")
	require.True(t, infoOf(l).Can.Has(locker.CapWakeUp))
	k := acquire(t, l, "k")
	require.Equal(t, k.Owner(), value[string](t, pool, `SELECT holder FROM public."Locks" WHERE key = 'k'`))
	require.NoError(t, k.Release(t.Context()))
}

func TestOpen_takesTheParametersOfARowLocker(t *testing.T) {
	database := newDatabase(t)
	pool := connect(t, database)
	l := openURL(t, database+"&locker_mode=row&locker_create=true&locker_table=locks&locker_token=sequence&locker_sequence=tokens&ttl=12s")
	k := acquire(t, l, "k")
	require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM locks WHERE key = 'k'"))
	require.Equal(t, value[uint64](t, pool, "SELECT last_value FROM tokens"), k.Token())
	require.NoError(t, k.Release(t.Context()))
}

func TestOpen_takesTokensFromTheClock(t *testing.T) { // G3
	for _, mode := range []string{"advisory", "row"} {
		database := newDatabase(t)
		l := openURL(t, database+"&locker_create=true&locker_token=clock&locker_restart_grace=1ms&locker_mode="+mode)
		require.True(t, infoOf(l).Can.Has(locker.CapClockToken), mode)
		before := time.Now().UnixMicro()
		k := acquire(t, l, "k")
		require.GreaterOrEqual(t, k.Token(), uint64(before))
		require.NoError(t, k.Release(t.Context()))
		require.Zero(t, value[int](t, connect(t, database), "SELECT count(*) FROM pg_sequences"))
	}
}

func TestOpen_knowsBothSchemes(t *testing.T) {
	raw := replace(t, newDatabase(t), "postgres://", "postgresql://")
	require.NoError(t, acquire(t, openURL(t, raw+"&locker_mode=lease&locker_create=true"), "k").Release(t.Context()))
}

// Of several hosts the primary is taken, behind whatever does not answer.
func TestOpen_takesSeveralHosts(t *testing.T) { // C109
	database := newDatabase(t)
	addr := anyServer(t).Addr()
	raw := replace(t, database, addr, "127.0.0.1:1,"+addr)
	for mode := range modes {
		l := openURL(t, raw+"&locker_create=true&locker_mode="+mode)
		require.NoError(t, acquire(t, l, "k").Release(t.Context()), mode)
	}
}

func TestOpen_dialsAsItIsTold(t *testing.T) {
	database := newDatabase(t)
	for mode := range modes {
		var dials atomic.Int64
		l, err := locker.OpenWith(t.Context(), database+"&locker_create=true&locker_mode="+mode, &locker.OpenConfig{
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return new(net.Dialer).DialContext(ctx, network, address)
			},
		})
		require.NoError(t, err)
		require.Positive(t, dials.Load(), mode)
		require.NoError(t, l.Close(t.Context()))
	}
}

// Close closes the pool that Open has made.
func TestOpen_leavesNoSession(t *testing.T) { // House
	database := newDatabase(t)
	pool := connect(t, database, maxConns(1))
	for mode := range modes {
		l, err := locker.Open(t.Context(), database+"&locker_create=true&locker_mode="+mode)
		require.NoError(t, err)
		require.NoError(t, acquire(t, l, "k").Release(t.Context()))
		require.NoError(t, l.Close(t.Context()))
		require.Eventually(t, func() bool {
			return value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") == 1
		}, soon, time.Millisecond, mode)
	}
	_, err := locker.Open(t.Context(), database+"&locker_mode=lease&locker_table=missing")
	require.ErrorContains(t, err, "CREATE TABLE")
	require.Eventually(t, func() bool {
		return value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") == 1
	}, soon, time.Millisecond)
}

func TestOpen_findsItsWayAroundAPooler(t *testing.T) { // C98, R3
	srv := startServer(t)
	bouncer, err := testenv.StartPgBouncer(t.Context(), srv, &testenv.PgBouncerConfig{Mode: "transaction", PoolSize: 3})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, bouncer.Stop()) })
	raw := bouncer.URL() + "&locker_create=true&locker_mode="
	for _, mode := range []string{"advisory", "row"} {
		_, err := locker.Open(t.Context(), raw+mode)
		require.ErrorIs(t, err, errPooler)
		require.ErrorContains(t, err, "locker_mode=lease")
	}
	require.False(t, infoOf(openURL(t, raw+"lease")).Can.Has(locker.CapWakeUp), "nobody can listen")
	l := openURL(t, raw+"lease&locker_listen="+srv.Addr())
	require.True(t, infoOf(l).Can.Has(locker.CapWakeUp))
	require.NoError(t, acquire(t, l, "k").Release(t.Context()))
	_, err = locker.Open(t.Context(), raw+"lease&locker_listen=127.0.0.1:1")
	require.ErrorContains(t, err, "Listen", "a wake-up that was asked for is not left out")
	openURL(t, replace(t, raw, "sslmode=disable", "sslmode=prefer")+"lease&locker_listen="+srv.Addr()) // neither has TLS
}

func TestOpen_refusesWhatItDoesNotKnowAndShowsNoSecrets(t *testing.T) { // House
	for raw, want := range map[string]string{
		"postgres://us3r:hunter2@host/db":                                               "locker_mode is",
		"postgres://us3r:hunter2@host/db?locker_mode=":                                  "locker_mode is",
		"postgres://us3r:hunter2@host/db?locker_mode=hunter2":                           "locker_mode is",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&locker_create=hunter2":       "locker_create is true or false",
		"postgres://us3r:hunter2@host/db?locker_mode=row&locker_create=hunter2":         "locker_create is true or false",
		"postgres://us3r:hunter2@host/db?locker_mode=row&locker_token=hunter2":          "locker_token is sequence or clock",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_token=hunter2":     "locker_token is sequence or clock",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_sessions=x":        "locker_sessions is a number",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_max_locks=1k":      "locker_max_locks is a number",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_sessions=65":       "between 1 and 64",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_max_locks=-1":      "negative",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_namespace=a%00b":   "NUL",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_sequence=.b":       "empty part",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_blocked_waiters=x": "locker_blocked_waiters is true or false",
		"postgres://us3r:hunter2@host/db?locker_mode=advisory&locker_table=t":           "unknown here: locker_table",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&locker_sequence=t":           "unknown here: locker_sequence",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&locker_token=clock":          "unknown here: locker_token",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&locker_listen=hunter2":       "locker_listen is host:port",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&locker_listen=a:hunter2":     "locker_listen is host:port",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&locker_listen=a:70000":       "locker_listen is host:port",
		"postgres://us3r:hunter2@host/db?locker_mode=row&locker_listen=a:1":             "unknown here: locker_listen",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&ttl=1ns":                     "TTL",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&sslmode=hunter2":             "sslmode is malformed",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&connect_timeout=hunter2":     "connect_timeout is malformed",
		"postgres://us3r:hunter2@host/db?locker_mode=lease&pool_max_conns=hunter2":      "pool_max_conns is malformed",
		"postgres://us3r:hunter2@host:port/db?locker_mode=lease":                        "",
		"postgres://us3r:hunter2@host/db?locker_mode=lease#hunter2":                     "fragment",
		"postgres://us3r:6543#hunter2@host/db":                                          "",
		"postgres://us3r:hunter2%zz@host/db?locker_mode=lease":                          "",
		"postgres://us3r:65?hunter2=x&locker_mode=lease@host/db":                        "locker_mode is",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // nothing is to be sent
		l, err := locker.Open(ctx, raw)
		require.Error(t, err, raw)
		require.Nil(t, l)
		require.NotContains(t, err.Error(), "hunter2", raw)
		require.NotContains(t, err.Error(), "us3r", raw)
		if want != "" {
			require.ErrorIs(t, err, locker.ErrInvalid, raw)
			require.ErrorContains(t, err, want, raw)
		}
	}
}

// Neither the driver's errors nor the server's show them.
func TestOpen_showsNoSecretsOfAURLThatIsRefused(t *testing.T) { // House
	database := newDatabase(t)
	addr := anyServer(t).Addr()
	for _, secret := range []string{"hunter2", "hun ter2", "hunter2%", "hunter2'\"\\", "hunter2\n", "hunter2=x hunter2", "ünter2", "p@hunter2:/?#"} {
		for _, where := range []string{addr, "127.0.0.1:1", "127.0.0.1:1," + addr} {
			for mode := range modes {
				u, err := url.Parse(database)
				require.NoError(t, err)
				u.User, u.Host = url.UserPassword("us3r"+secret, secret), where
				q := u.Query()
				q.Set("locker_mode", mode)
				u.RawQuery = q.Encode()
				_, err = locker.Open(t.Context(), u.String())
				require.Error(t, err)
				require.NotContains(t, err.Error(), "us3r", "%s at %s", mode, where)
				require.NotContains(t, err.Error(), "ter2", "%s at %s", mode, where)
			}
		}
	}
}
