//go:build unix

package testenv

import (
	"context"
	"net"
	"strconv"
	"strings"
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
	t.Logf("cluster started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, c.Stop()) })
	return c
}

func TestCluster_servesEveryKeyOnOneOfThreeMasters(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	require.Len(t, c.Nodes(), 6)
	assert.Equal(t, "redis-cluster://"+strings.Join(c.Addrs(), ","), c.URL())
	keys := make(map[*Redis]int)
	for i := range 20 {
		key := strconv.Itoa(i)
		master, err := c.MasterFor(within(t), key)
		require.NoError(t, err)
		replicatedSet(t, master, key, 1)
		keys[master]++
	}
	assert.Len(t, keys, 3)
	for i, r := range c.Nodes() {
		assert.Equal(t, r.Addr(), c.Addrs()[i])
		if keys[r] != 0 {
			assert.Equal(t, ":"+strconv.Itoa(keys[r]), do(t, r, "DBSIZE"), "a key of the start is left")
		}
	}
}

func TestCluster_failsOverAndTakesTheOldMasterBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ end, back func(*Redis) error }{
		"killed": {(*Redis).Kill, func(r *Redis) error { return r.Restart(context.Background()) }},
		"paused": {(*Redis).Pause, (*Redis).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, nil)
			old, err := c.MasterFor(within(t), "k")
			require.NoError(t, err)

			require.NoError(t, tc.end(old))
			_, err = c.MasterFor(within(t), "k")
			require.ErrorContains(t, err, "nobody serves")
			began := time.Now()
			master, err := c.AwaitMaster(t.Context(), "k", old)
			require.NoError(t, err)
			t.Logf("another master after %v", time.Since(began))
			assert.NotSame(t, old, master)
			assert.Equal(t, "+OK", do(t, master, "SET k 1"))

			require.NoError(t, tc.back(old))
			began = time.Now()
			require.NoError(t, c.AwaitOK(t.Context()))
			t.Logf("a replica after %v", time.Since(began))
			assert.Contains(t, do(t, old, "SET k 2"), "-MOVED")
			now, err := c.MasterFor(within(t), "k")
			require.NoError(t, err)
			assert.Same(t, master, now)
			replicatedSet(t, master, "k", 1)
		})
	}
}

func TestCluster_aSecondPortThatWasTakenIsNoticed(t *testing.T) {
	t.Parallel()
	c := startCluster(t, nil)
	r := c.Nodes()[0]
	require.NoError(t, r.Kill())
	_, port, err := net.SplitHostPort(r.Addr())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	l, err := net.Listen("tcp4", local(number+secondPort))
	require.NoError(t, err)
	defer l.Close()
	require.ErrorIs(t, r.Restart(within(t)), errPortTaken)
}

func TestCluster_isNotOKWhileANodeIsGone(t *testing.T) {
	t.Parallel()
	c := startCluster(t, &ClusterConfig{NodeTimeout: time.Minute})
	replica := c.Nodes()[5]
	require.NoError(t, replica.Kill())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := c.AwaitOK(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, replica.Addr())
}

func TestCluster_stopLeavesNothing(t *testing.T) {
	tmp := ownTemp(t)
	c := startCluster(t, nil)
	stopLeavesNothing(t, tmp, c.Nodes(), c.Stop)
}

func TestStartCluster_refusesWhatItCannotDo(t *testing.T) {
	_, err := StartCluster(t.Context(), &ClusterConfig{NodeTimeout: time.Microsecond})
	require.ErrorContains(t, err, "1µs")
}
