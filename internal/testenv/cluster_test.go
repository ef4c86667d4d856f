//go:build unix

package testenv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startCluster(t *testing.T, cfg *ClusterConfig) *Cluster {
	t.Helper()
	began := time.Now()
	c, err := StartCluster(t.Context(), cfg)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, c.Stop()) })
	return c
}

func TestCluster_failsOverAndTakesTheKilledMasterBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	began := time.Now()
	lap := func(what string) { t.Logf("%s: %v", what, time.Since(began)); began = time.Now() }
	old, err := c.MasterFor(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, old.Kill())
	master, err := c.AwaitMaster(within(t), "k", old)
	require.NoError(t, err)
	lap("failover")
	assert.NotEqual(t, old, master)
	assert.Equal(t, "+OK", do(t, master, "SET k 1"))
	require.NoError(t, old.Restart(within(t)))
	require.NoError(t, c.AwaitOK(within(t)))
	lap("rejoin")
	assert.Contains(t, do(t, old, "SET k 2"), "-MOVED")
}
