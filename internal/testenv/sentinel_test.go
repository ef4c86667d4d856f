//go:build unix

package testenv

import (
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
	t.Logf("started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	return s
}

func TestSentinel_failsOverAndTakesTheKilledMasterBack(t *testing.T) {
	t.Parallel()
	s := startSentinel(t, nil)
	began := time.Now()
	lap := func(what string) { t.Logf("%s: %v", what, time.Since(began)); began = time.Now() }
	old, err := s.Master(t.Context())
	require.NoError(t, err)
	assert.Equal(t, s.Data()[0], old)
	require.NoError(t, old.Kill())
	master, err := s.AwaitMaster(within(t), old)
	require.NoError(t, err)
	lap("failover")
	assert.NotEqual(t, old, master)
	assert.Equal(t, "+OK", do(t, master, "SET k 1"))
	require.NoError(t, old.Restart(within(t)))
	require.NoError(t, s.AwaitReplicas(within(t)))
	lap("rejoin")
	assert.Equal(t, "$1", do(t, old, "GET k"))
	assert.Contains(t, do(t, old, "SET k 2"), "-READONLY")
}
