package etcdlock

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/internal/testenv"
)

func startCluster(t testing.TB) *testenv.EtcdCluster {
	t.Helper()
	c, err := testenv.StartEtcdCluster(t.Context(), quick)
	started(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return c
}

// What breaks is the leader. The cases are those that could end differently on three members:
// the rest would cost minutes and prove nothing.
func TestConformance_cluster(t *testing.T) { // C122
	t.Parallel()
	cases := regexp.MustCompile(`^(G1/(lockers|proc)|G3/token|G4|G7|H3/server|R2/lost|W1/kil|W3/next|W4/server)`)
	(&store{only: func(c conformance.Case) bool { return cases.MatchString(c.ID) }, start: func(ctx context.Context) (servers, error) {
		c, err := testenv.StartEtcdCluster(ctx, quick)
		if err != nil {
			return servers{}, err
		}
		leader := breakable(c.InCharge())
		leader.Failover = true
		return servers{addrs: c.Addrs(), stop: c.Stop, breakable: leader}, nil
	}}).run(t)
}

// opened is a Locker as locker.Open makes it.
func opened(t testing.TB, url string, cfg locker.Config) locker.Locker {
	t.Helper()
	l, err := locker.OpenWith(t.Context(), url, &locker.OpenConfig{Config: cfg})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	return l
}

func TestCluster_locksOutliveTheirLeader(t *testing.T) { // W4, H3, C122
	c := startCluster(t)
	for name, broken := range map[string]struct {
		do, undo func(context.Context, *testenv.Etcd) error
	}{
		"killed": {func(_ context.Context, e *testenv.Etcd) error { return e.Kill() }, func(ctx context.Context, e *testenv.Etcd) error { return e.Restart(ctx) }},
		"paused": {func(_ context.Context, e *testenv.Etcd) error { return e.Pause() }, func(_ context.Context, e *testenv.Etcd) error { return e.Resume() }},
		"cut":    {func(_ context.Context, e *testenv.Etcd) error { return e.CutOff() }, func(_ context.Context, e *testenv.Etcd) error { return e.Reconnect() }},
	} {
		t.Run(name, func(t *testing.T) {
			var took []time.Duration
			for range 3 {
				holder, other := opened(t, c.URL(), locker.Config{TTL: 6 * time.Second}), opened(t, c.URL(), locker.Config{TTL: 6 * time.Second})
				held, err := holder.Acquire(t.Context(), "held")
				require.NoError(t, err)
				first, err := other.Acquire(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, first.Release(t.Context()))
				leader, err := c.Leader(t.Context())
				require.NoError(t, err)
				start := time.Now()
				require.NoError(t, broken.do(t.Context(), leader))
				bounded, cancel := context.WithTimeout(t.Context(), 2*soon)
				k, err := other.Acquire(bounded, "k")
				cancel()
				took = append(took, time.Since(start))
				require.NoError(t, err)
				require.Greater(t, k.Token(), first.Token())
				require.NoError(t, k.Release(t.Context()))
				before := held.Deadline()
				require.Eventually(t, func() bool { return held.Deadline().After(before) || held.Err() != nil }, 2*soon, time.Millisecond)
				require.NoError(t, held.Err())
				require.NoError(t, broken.undo(t.Context(), leader))
				require.NoError(t, c.AwaitOK(t.Context()))
				require.NoError(t, held.Release(t.Context()))
			}
			t.Logf("next grant %v .. %v after the leader was broken", slices.Min(took), slices.Max(took))
		})
	}
}

// A member that has lost the others grants nothing, and tells nobody that he still holds.
func TestCluster_aMemberWithoutTheOthersGrantsNothing(t *testing.T) { // G1, G7
	c := startCluster(t)
	for range 3 {
		leader, err := c.Leader(t.Context())
		require.NoError(t, err)
		alone := opened(t, leader.URL()+"?min_ttl=1s", locker.Config{TTL: time.Second})
		k, err := alone.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, leader.CutOff())
		<-k.Done()
		requireLost(t, k.Err(), locker.ReasonExpired)
		next, err := opened(t, c.URL(), locker.Config{}).Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.Greater(t, next.Token(), k.Token())
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err = alone.Acquire(ctx, "free")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, leader.Reconnect())
		require.NoError(t, c.AwaitOK(t.Context()))
		require.NoError(t, next.Release(t.Context()))
	}
}
