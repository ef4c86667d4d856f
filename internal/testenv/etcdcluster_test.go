//go:build unix

package testenv

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startEtcdCluster(t *testing.T) *EtcdCluster {
	t.Helper()
	began := time.Now()
	c, err := StartEtcdCluster(t.Context(), nil)
	if Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("cluster started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, c.Stop()) })
	return c
}

// leaderAndFollower are the leader and one of the others.
func leaderAndFollower(t *testing.T, c *EtcdCluster) (leader, follower *Etcd) {
	t.Helper()
	leader, err := c.Leader(within(t))
	require.NoError(t, err)
	others := slices.DeleteFunc(c.Members(), func(e *Etcd) bool { return e == leader })
	require.Len(t, others, 2)
	return leader, others[0]
}

func restarted(e *Etcd) error { return e.Restart(context.Background()) }

func TestEtcdCluster_isThreeMembersWithOneLeader(t *testing.T) {
	t.Parallel()
	c := startEtcdCluster(t)
	assert.Equal(t, "etcd://"+strings.Join(c.Addrs(), ","), c.URL())
	leader, follower := leaderAndFollower(t, c)
	require.NoError(t, put(within(t), follower, "k", "1"))
	for i, e := range c.Members() {
		assert.Equal(t, e.Addr(), c.Addrs()[i])
		assert.Equal(t, kept{"1", "2", "2"}, keptBy(t, e, "k"))
		said, err := e.status(within(t))
		require.NoError(t, err)
		assert.Equal(t, e == leader, said.Leader == said.Header.Me, "who leads is another")
	}
}

func TestEtcdCluster_electsAnotherLeaderAndTakesTheOldOneBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ end, back func(*Etcd) error }{
		"killed":  {(*Etcd).Kill, restarted},
		"paused":  {(*Etcd).Pause, (*Etcd).Resume},
		"cut off": {(*Etcd).CutOff, (*Etcd).Reconnect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startEtcdCluster(t)
			old, follower := leaderAndFollower(t, c)
			require.NoError(t, put(within(t), old, "k", "1"))

			require.NoError(t, tc.end(old))
			began := time.Now()
			leader, err := c.AwaitLeader(t.Context(), old)
			require.NoError(t, err)
			t.Logf("another leader after %v", time.Since(began))
			assert.NotSame(t, old, leader)
			assert.Contains(t, c.Members(), leader)
			require.NoError(t, put(within(t), follower, "k", "2"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, c.AwaitOK(ctx), context.DeadlineExceeded)

			require.NoError(t, tc.back(old))
			began = time.Now()
			require.NoError(t, c.AwaitOK(t.Context()))
			t.Logf("whole after %v", time.Since(began))
			assert.Equal(t, kept{"2", "3", "3"}, keptBy(t, old, "k"))
		})
	}
}

// What a member that is cut off knows it still tells; what takes the others it cannot do.
// A lease is renewed by the leader, on a request of its own that is no part of raft.
func TestEtcdCluster_aMemberThatIsCutOffHasItsClientsAndNobodyElse(t *testing.T) {
	t.Parallel()
	c := startEtcdCluster(t)
	leader, follower := leaderAndFollower(t, c)
	id, _ := grant(t, follower)
	renew := func(ctx context.Context) error {
		answer, err := follower.ask(ctx, "/v3/lease/keepalive", fmt.Sprintf(`{"ID":%q}`, id))
		if err == nil && !strings.Contains(string(answer), `"TTL":"2"`) {
			err = fmt.Errorf("not renewed: %s", answer)
		}
		return err
	}
	require.NoError(t, renew(within(t)))

	require.Error(t, follower.Reconnect(), "it is not cut off")
	require.NoError(t, follower.CutOff())
	require.Error(t, follower.CutOff(), "it is already")
	require.NoError(t, follower.Ping(within(t)))
	for what, try := range map[string]func(context.Context) error{
		"renewal": renew,
		"write":   func(ctx context.Context) error { return put(ctx, follower, "k", "1") },
		"read":    follower.current,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.Error(t, try(ctx), what)
		cancel()
	}
	require.NoError(t, put(within(t), leader, "k", "2"), "the two others go on")

	require.NoError(t, follower.Reconnect())
	require.NoError(t, c.AwaitOK(t.Context()))
	assert.Equal(t, "2", keptBy(t, follower, "k").value)
}

// What is on its way to it fills the buffers, and nobody empties them.
func TestEtcdCluster_aMemberCanBeCutOffWhileItIsPaused(t *testing.T) {
	t.Parallel()
	c := startEtcdCluster(t)
	leader, follower := leaderAndFollower(t, c)
	require.NoError(t, follower.Pause())
	value := strings.Repeat("v", 1<<20)
	for range 20 {
		require.NoError(t, put(within(t), leader, "k", value))
	}
	began := time.Now()
	require.NoError(t, follower.CutOff())
	t.Logf("cut off in %v", time.Since(began))
	assert.Less(t, time.Since(began), 5*time.Second)
	require.NoError(t, follower.Resume())
	require.NoError(t, put(within(t), leader, "k", "1"))
	require.NoError(t, follower.Reconnect())
	require.NoError(t, c.AwaitOK(t.Context()))
	assert.Equal(t, "1", keptBy(t, follower, "k").value)
}

func TestEtcdCluster_keepsItsDataWhenAllMembersAreKilled(t *testing.T) {
	t.Parallel()
	c := startEtcdCluster(t)
	require.NoError(t, put(within(t), c.Members()[0], "k", "1"))
	for _, e := range c.Members() {
		require.NoError(t, e.Kill())
	}
	_, err := c.Leader(within(t))
	require.ErrorContains(t, err, "nobody leads")
	require.NoError(t, each(c.Members(), func(_ int, e *Etcd) error { return restarted(e) }))
	require.NoError(t, c.AwaitOK(t.Context()))
	assert.Equal(t, kept{"1", "2", "2"}, keptBy(t, c.Members()[2], "k"))
}

func TestEtcdCluster_inChargeIsTheLeader(t *testing.T) {
	t.Parallel()
	c := startEtcdCluster(t)
	i := c.InCharge()
	for name, tc := range map[string]struct{ end, back func(context.Context) error }{
		"killed":  {i.Kill, i.Restart},
		"paused":  {i.Pause, i.Resume},
		"cut off": {i.CutOff, i.Reconnect},
	} {
		old, err := c.Leader(within(t))
		require.NoError(t, err)
		require.NoError(t, tc.end(within(t)), name)
		require.Error(t, i.CutOff(within(t)), "it is broken already")
		leader, err := c.AwaitLeader(t.Context(), old)
		require.NoError(t, err, name)
		assert.NotSame(t, old, leader)
		require.NoError(t, tc.back(within(t)), name)
		leading, err := c.Leader(within(t))
		require.NoError(t, err, name)
		assert.Contains(t, c.Members(), leading)
	}
}

func TestEtcdCluster_stopLeavesNothing(t *testing.T) {
	tmp := ownTemp(t)
	c := startEtcdCluster(t)
	stopLeavesNothing(t, tmp, c.Members(), c.Stop)
}
