//go:build unix

package testenv

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startSentinel(t *testing.T, cfg *SentinelConfig) *Sentinel {
	t.Helper()
	began := time.Now()
	s, err := StartSentinel(t.Context(), cfg)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("Sentinel started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	return s
}

func TestSentinel_namesItsServers(t *testing.T) {
	t.Parallel()
	s := startSentinel(t, &SentinelConfig{Replicas: 1, Redis: RedisConfig{AppendOnly: true, Settings: []string{"min-replicas-to-write 1"}}})
	require.Len(t, s.Sentinels(), 3)
	for i, r := range s.Sentinels() {
		assert.Equal(t, r.Addr(), s.Addrs()[i])
	}
	a := s.Addrs()
	assert.Equal(t, "redis-sentinel://"+a[0]+","+a[1]+","+a[2]+"/"+s.MasterName(), s.URL())

	data := s.Data()
	require.Len(t, data, 2)
	master, err := s.Master(within(t))
	require.NoError(t, err)
	assert.Same(t, data[0], master)
	replicatedSet(t, master, "k", 1)
	assert.Contains(t, do(t, data[1], "SET k 1"), "-READONLY")
	require.NoError(t, s.Sentinels()[0].Kill())
	require.NoError(t, s.Sentinels()[1].Pause())
	master, err = s.Master(within(t))
	require.NoError(t, err, "one sentinel is enough to ask")
	assert.Same(t, data[0], master)

	require.NoError(t, data[1].Kill())
	require.Eventually(t, func() bool { return strings.Contains(do(t, master, "SET k 2"), "-NOREPLICAS") }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, master.Kill())
	require.NoError(t, master.Restart(within(t)))
	assert.Equal(t, "$1", do(t, master, "GET k"), "the settings are not those of the servers")
}

func TestSentinel_failsOverAndTakesTheOldMasterBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ end, back func(*Redis) error }{
		"killed": {(*Redis).Kill, func(r *Redis) error { return r.Restart(context.Background()) }},
		"paused": {(*Redis).Pause, (*Redis).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSentinel(t, nil)
			old, err := s.Master(within(t))
			require.NoError(t, err)

			require.NoError(t, tc.end(old))
			began := time.Now()
			master, err := s.AwaitMaster(t.Context(), old)
			require.NoError(t, err)
			t.Logf("another master after %v", time.Since(began))
			assert.NotSame(t, old, master)
			assert.Contains(t, s.Data(), master)
			assert.Equal(t, "+OK", do(t, master, "SET k 1"))

			require.NoError(t, tc.back(old))
			began = time.Now()
			require.NoError(t, s.AwaitReplicas(t.Context()))
			t.Logf("a replica after %v", time.Since(began))
			assert.Equal(t, "$1", do(t, old, "GET k"))
			assert.Contains(t, do(t, old, "SET k 2"), "-READONLY")
			replicatedSet(t, master, "k2", 2)
			assert.Equal(t, "$1", do(t, old, "GET k2"))
		})
	}
}

func TestSentinel_withoutAMajorityTheMasterStaysAndTheWaitSaysWhy(t *testing.T) {
	t.Parallel()
	s := startSentinel(t, nil)
	for _, r := range s.Sentinels()[1:] {
		require.NoError(t, r.Kill())
	}
	master := s.Data()[0]
	require.NoError(t, master.Kill())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := s.AwaitMaster(ctx, master)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the master is "+master.Addr())
}

func TestSentinel_stopLeavesNothing(t *testing.T) {
	tmp := ownTemp(t)
	s := startSentinel(t, nil)
	all := append(s.Sentinels(), s.Data()...)
	stopLeavesNothing(t, tmp, all, s.Stop)
}

func TestStartSentinel_refusesWhatItCannotDo(t *testing.T) {
	for _, cfg := range []SentinelConfig{
		{Replicas: -1}, {DownAfter: -time.Second}, {FailoverTimeout: time.Millisecond / 2}, {Period: -1},
	} {
		_, err := StartSentinel(t.Context(), &cfg)
		require.ErrorContains(t, err, "testenv: ", "%+v", cfg)
		assert.NotErrorIs(t, err, ErrNotInstalled)
	}
}
