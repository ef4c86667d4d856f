//go:build unix

package testenv

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startOneEtcd(t *testing.T, cfg *EtcdConfig) *Etcd {
	t.Helper()
	began := time.Now()
	e, err := StartEtcd(t.Context(), cfg)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("etcd started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, e.Stop()) })
	return e
}

func put(ctx context.Context, e *Etcd, key, value string) error {
	b64 := base64.StdEncoding.EncodeToString
	_, err := e.ask(ctx, "/v3/kv/put", fmt.Sprintf(`{"key":%q,"value":%q}`, b64([]byte(key)), b64([]byte(value))))
	return err
}

// kept is a key's value, and the revision of that and of all.
type kept struct{ value, revision, store string }

func keptBy(t *testing.T, e *Etcd, key string) kept {
	t.Helper()
	answer, err := e.ask(within(t), "/v3/kv/range", fmt.Sprintf(`{"key":%q}`, base64.StdEncoding.EncodeToString([]byte(key))))
	require.NoError(t, err)
	var found struct {
		Header struct{ Revision string }
		Kvs    []struct {
			Value []byte
			At    string `json:"mod_revision"`
		}
	}
	require.NoError(t, json.Unmarshal(answer, &found))
	k := kept{store: found.Header.Revision}
	if len(found.Kvs) == 1 {
		k.value, k.revision = string(found.Kvs[0].Value), found.Kvs[0].At
	}
	return k
}

// grant gets a lease for a second, and returns its id and for how long it was granted.
func grant(t *testing.T, e *Etcd) (id, ttl string) {
	t.Helper()
	answer, err := e.ask(within(t), "/v3/lease/grant", `{"TTL":1}`)
	require.NoError(t, err)
	var lease struct{ ID, TTL string }
	require.NoError(t, json.Unmarshal(answer, &lease))
	return lease.ID, lease.TTL
}

func TestEtcd_startsWithItsOwnPortAndDirectory(t *testing.T) {
	t.Parallel()
	a, b := startOneEtcd(t, nil), startOneEtcd(t, nil)
	assert.Equal(t, "etcd://"+a.Addr(), a.URL())
	assert.NotEqual(t, a.Addr(), b.Addr())
	assert.NotEqual(t, a.PID(), b.PID())
	require.NoError(t, a.Ping(within(t)))
	require.NoError(t, put(within(t), a, "k", "1"))
	assert.Equal(t, kept{"1", "2", "2"}, keptBy(t, a, "k"))
	assert.Equal(t, kept{"", "", "1"}, keptBy(t, b, "k"), "a key of one is in the other")
	for _, err := range []error{a.CutOff(), a.Reconnect()} {
		require.ErrorIs(t, err, errors.ErrUnsupported, "it has no others")
	}
}

func TestEtcd_isThePinnedVersion(t *testing.T) {
	t.Parallel()
	if os.Getenv("LOCKER_TEST_ETCD_BIN") != "" {
		t.Skip("another one was named")
	}
	answer, err := startOneEtcd(t, nil).ask(within(t), "/version", "")
	require.NoError(t, err)
	var version struct{ Etcdserver string }
	require.NoError(t, json.Unmarshal(answer, &version))
	pinned, err := os.ReadFile("etcd/go.mod")
	require.NoError(t, err)
	assert.Contains(t, string(pinned), "go.etcd.io/etcd/server/v3 v"+version.Etcdserver+" ")
}

func TestEtcd_aBadSettingIsAnErrorThatTellsWhatEtcdSaid(t *testing.T) {
	tmp := ownTemp(t)
	_, err := StartEtcd(t.Context(), &EtcdConfig{Settings: []string{"--no-such-setting"}})
	if Skippable(err) {
		t.Skip(err)
	}
	require.ErrorContains(t, err, "no-such-setting")
	assertEmpty(t, tmp)
}

func TestEtcd_aPortThatWasTakenIsNoticed(t *testing.T) {
	t.Parallel()
	e := startOneEtcd(t, nil)
	require.NoError(t, e.Kill())
	_, port, err := net.SplitHostPort(e.Addr())
	require.NoError(t, err)
	var number int
	_, err = fmt.Sscan(port, &number)
	require.NoError(t, err)
	for _, taken := range []int{number, number + secondPort} {
		l, err := net.Listen("tcp4", local(taken))
		require.NoError(t, err)
		require.ErrorIs(t, e.Restart(within(t)), errPortTaken)
		assert.Zero(t, e.PID())
		require.NoError(t, l.Close())
	}
	require.NoError(t, e.Restart(within(t)), "a Restart that failed can be repeated")
}

func TestEtcd_isSilentWhilePausedAndAnswersAfterResume(t *testing.T) {
	t.Parallel()
	e := startOneEtcd(t, nil)
	require.NoError(t, e.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, e.Ping(ctx), context.DeadlineExceeded)
	require.NoError(t, e.Resume())
	require.NoError(t, e.Ping(within(t)))
}

func TestEtcd_killAndRestartKeepDataAndRevision(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]*EtcdConfig{"default": nil, "sync": {Sync: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startOneEtcd(t, cfg)
			addr, pid := e.Addr(), e.PID()
			for i := range 5 {
				require.NoError(t, put(within(t), e, "k", fmt.Sprint(i)))
			}
			require.NoError(t, e.Kill())
			assert.Zero(t, e.PID())
			require.Error(t, e.Ping(within(t)))
			require.ErrorIs(t, e.Pause(), ErrNotRunning)
			require.NoError(t, e.Kill(), "killing it again")

			began := time.Now()
			require.NoError(t, e.Restart(within(t)))
			t.Logf("restarted in %v", time.Since(began))
			assert.Equal(t, addr, e.Addr())
			assert.NotEqual(t, pid, e.PID())
			assert.Equal(t, kept{"4", "6", "6"}, keptBy(t, e, "k"))
			require.NoError(t, put(within(t), e, "k", "5"))
			assert.Equal(t, kept{"5", "7", "7"}, keptBy(t, e, "k"))
		})
	}
}

// A watch goes on until its client ends it.
func TestEtcd_restartOfALiveServerDoesNotWaitForItsClients(t *testing.T) {
	t.Parallel()
	e := startOneEtcd(t, nil)
	require.NoError(t, put(within(t), e, "k", "1"))
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+e.Addr()+"/v3/watch", strings.NewReader(`{"create_request":{"key":"aw=="}}`))
	require.NoError(t, err)
	watch, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	require.NoError(t, err)
	defer watch.Body.Close()
	_, err = watch.Body.Read(make([]byte, 1)) // the answer that the watch is there
	require.NoError(t, err)

	require.NoError(t, e.Pause())
	began := time.Now()
	require.NoError(t, e.Restart(within(t)), "also when it is paused")
	t.Logf("restarted in %v", time.Since(began))
	assert.Less(t, time.Since(began), stopGrace, "it had to be killed")
	assert.Equal(t, kept{"1", "2", "2"}, keptBy(t, e, "k"))
}

func TestEtcd_theShortestLeaseFollowsFromTheElection(t *testing.T) {
	t.Parallel()
	_, ttl := grant(t, startOneEtcd(t, nil))
	assert.Equal(t, "2", ttl)
	_, ttl = grant(t, startOneEtcd(t, &EtcdConfig{Heartbeat: 50 * time.Millisecond, Election: 500 * time.Millisecond}))
	assert.Equal(t, "1", ttl)
}

func TestEtcd_refusesWritesBeyondItsQuotaAndStillAnswers(t *testing.T) {
	t.Parallel()
	e := startOneEtcd(t, &EtcdConfig{Quota: 1 << 20})
	var err error
	for range 10 {
		if err = put(within(t), e, "k", string(bytes.Repeat([]byte("v"), 1<<18))); err != nil {
			break
		}
	}
	require.ErrorContains(t, err, "database space exceeded")
	require.NoError(t, e.Ping(within(t)))
	require.NoError(t, e.Kill())
	require.NoError(t, e.Restart(within(t)))
	require.ErrorContains(t, put(within(t), e, "k", "1"), "database space exceeded")
}

func TestEtcd_settingsWin(t *testing.T) {
	t.Parallel()
	e := startOneEtcd(t, &EtcdConfig{Election: 5 * time.Second, Settings: []string{"--election-timeout=500"}})
	_, ttl := grant(t, e)
	assert.Equal(t, "1", ttl)
}

func TestStartEtcd_endsWithItsContext(t *testing.T) {
	cause := errors.New("enough")
	dead, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := StartEtcd(dead, nil)
	require.ErrorIs(t, err, cause)

	// A program that never gets ready.
	tmp, bin := ownTemp(t), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "etcd"), []byte("#!/bin/sh\necho electing\nexec sleep 60\n"), 0o755))
	t.Setenv("LOCKER_TEST_ETCD_BIN", bin)
	for name, start := range map[string]func(context.Context) error{
		"one":     func(ctx context.Context) error { _, err := StartEtcd(ctx, nil); return err },
		"cluster": func(ctx context.Context) error { _, err := StartEtcdCluster(ctx, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer stop()
			err := start(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "electing")
			assertEmpty(t, tmp)
		})
	}
}

func TestEtcd_stopLeavesNothing(t *testing.T) {
	tmp := ownTemp(t)
	e := startOneEtcd(t, nil)
	pid := e.PID()
	require.NoError(t, e.Pause(), "a paused server can be stopped too")
	require.NoError(t, e.Stop())
	assertEmpty(t, tmp)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "the process is left")

	require.NoError(t, e.Stop(), "stopping it again")
	assert.Zero(t, e.PID())
	for _, err := range []error{e.Pause(), e.Resume(), e.Kill(), e.Restart(within(t))} {
		require.ErrorIs(t, err, ErrNotRunning)
	}
}

func TestStartEtcd_saysWhatIsMissing(t *testing.T) {
	_, err := builtEtcd(t.TempDir(), "etcd")
	require.ErrorIs(t, err, os.ErrNotExist, "no module that pins a version")

	here := filepath.Join(t.TempDir(), "internal", "testenv")
	require.NoError(t, os.MkdirAll(filepath.Join(here, "etcd"), 0o755))
	pin := filepath.Join(here, "etcd", "go.mod")
	require.NoError(t, os.WriteFile(pin, []byte("require go.etcd.io/etcd/server/v3 v3.1.4 // indirect\n"), 0o600))
	_, err = builtEtcd(here, "etcd")
	require.ErrorContains(t, err, filepath.Join(".bin", "etcd-v3.1.4"))
	require.NoError(t, os.WriteFile(pin, nil, 0o600))
	_, err = builtEtcd(here, "etcd")
	require.ErrorContains(t, err, "no version")

	t.Setenv("LOCKER_TEST_ETCD_BIN", t.TempDir())
	for _, start := range []func() error{
		func() error { _, err := StartEtcd(t.Context(), nil); return err },
		func() error { _, err := StartEtcdCluster(t.Context(), nil); return err },
	} {
		err := start()
		require.ErrorContains(t, err, "LOCKER_TEST_ETCD_BIN")
		assert.False(t, Skippable(err), "it was named")
	}
}

func TestStartEtcd_refusesWhatItCannotDo(t *testing.T) {
	for _, cfg := range []EtcdConfig{{Heartbeat: -1}, {Election: time.Microsecond}, {Quota: -1}} {
		_, err := StartEtcd(t.Context(), &cfg)
		require.ErrorContains(t, err, "testenv: ", "%+v", cfg)
		require.NotErrorIs(t, err, ErrNotInstalled)
		_, err = StartEtcdCluster(t.Context(), &cfg)
		require.ErrorContains(t, err, "testenv: ", "%+v", cfg)
		require.NotErrorIs(t, err, ErrNotInstalled)
	}
}
