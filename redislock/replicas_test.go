package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// startReplicated starts a server and a replica of it.
func startReplicated(t *testing.T) (master, replica *testenv.Redis) {
	t.Helper()
	master = startServer(t)
	replica, err := testenv.StartReplica(t.Context(), master, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Stop()) })
	return master, replica
}

// replicated makes a backend that waits for one replica, for longer than a busy machine
// takes to acknowledge anything.
func replicated(t *testing.T, rdb redis.UniversalClient) *backend {
	t.Helper()
	b, err := newBackend(rdb, &Config{Replicas: 1, ReplicaTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// cut ends the replication, with an old state on the replica.
func cut(t *testing.T, replica *testenv.Redis) {
	t.Helper()
	require.NoError(t, connect(t, replica).Do(context.Background(), "REPLICAOF", "127.0.0.1", "1").Err())
}

// promote makes the replica a master.
func promote(t *testing.T, replica *testenv.Redis) {
	t.Helper()
	require.NoError(t, connect(t, replica).Do(context.Background(), "REPLICAOF", "NO", "ONE").Err())
}

func TestReplicas_badSettingsAreRefused(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{ReadTimeout: time.Second})
	defer rdb.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for _, cfg := range []*Config{
		{Replicas: -1}, {Replicas: 101}, {ReplicaTimeout: time.Second / 2}, {Replicas: 1, ReplicaTimeout: -1},
		{Replicas: 1, ReplicaTimeout: time.Microsecond}, {Replicas: 1, ReplicaTimeout: time.Second},
		{Replicas: 1, ReplicaTimeout: time.Hour},
	} {
		_, err := New(rdb, cfg)
		require.ErrorIs(t, err, locker.ErrInvalid, "%+v", cfg)
		field := "ReplicaTimeout"
		if cfg.ReplicaTimeout == 0 {
			field = "Replicas"
		}
		require.ErrorContains(t, err, field, "%+v", cfg)
	}
	_, err := New(ring, &Config{Replicas: 1})
	require.ErrorIs(t, err, locker.ErrInvalid)
	require.ErrorContains(t, err, "Replicas")
	for raw, ok := range map[string]bool{
		"redis://h?replicas=2&replica_timeout=40ms":       true,
		"redis-sentinel://h/m?replicas=1":                 true,
		"redis://h?replicas=two":                          false,
		"redis://h?replicas=-1":                           false,
		"redis://h?replicas=1&replica_timeout=40":         false,
		"redis-cluster://h?replicas=1&replica_timeout=1s": false, // the client's own is a second
	} {
		l, err := locker.Open(t.Context(), raw)
		if ok {
			require.NoError(t, err, raw)
			require.NoError(t, l.Close(context.Background()))
		} else {
			require.ErrorIs(t, err, locker.ErrInvalid, raw)
		}
	}
	short := redis.NewClient(&redis.Options{ReadTimeout: 100 * time.Millisecond})
	defer short.Close()
	b, err := newBackend(short, &Config{Replicas: 1})
	require.NoError(t, err)
	require.Equal(t, 50*time.Millisecond, b.replicas.timeout)
}

func TestReplicas_aGrantThatTooFewHaveIsRefusedAndUndone(t *testing.T) { // C89
	t.Parallel()
	master, replica := startReplicated(t)
	admin := connect(t, master)
	rdb := connect(t, master, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	b := replicated(t, rdb)
	// One that would wait for much longer than a busy machine takes.
	patient, err := newBackend(rdb, &Config{Replicas: 1, ReplicaTimeout: 2500 * time.Millisecond})
	require.NoError(t, err)
	defer patient.Close(context.Background())
	ctx := t.Context()
	g := take(t, b, "held", time.Minute)
	require.Equal(t, g.holder, connect(t, replica).Get(ctx, "held").Val(), "the replica has it")

	require.NoError(t, replica.Pause())
	refused := func(b *backend, ttl time.Duration) {
		t.Helper()
		start := time.Now()
		g, err := b.TryAcquire(ctx, request("k", ttl))
		took := time.Since(start)
		require.Nil(t, g, "it is undone already")
		var few *ReplicasError
		require.ErrorAs(t, err, &few)
		require.Equal(t, ReplicasError{Want: 1, Got: 0}, *few)
		require.ErrorIs(t, err, ErrReplicas)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.False(t, b.isPermanent(err))
		require.Zero(t, admin.Exists(context.Background(), "k").Val())
		require.Less(t, took, 2500*time.Millisecond)
	}
	refused(b, time.Minute)
	refused(patient, 30*time.Millisecond) // not longer than the lease is worth
	refused(patient, time.Millisecond)
	start := time.Now()
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	k, err := patient.TryAcquire(brief, request("brief", time.Minute))
	require.Error(t, err)
	require.NotErrorIs(t, err, locker.ErrHeld)
	require.Less(t, time.Since(start), 2*time.Second)
	if k != nil { // its own end came first, before or after the undo was done
		if err := k.Release(ctx); err != nil {
			require.ErrorIs(t, err, locker.ErrLost)
		}
	}

	requireHeld(t, b, "held")
	_, err = g.Renew(ctx, time.Minute)
	require.ErrorIs(t, err, ErrReplicas)
	_, err = b.Extend(ctx, g, time.Minute)
	require.ErrorIs(t, err, ErrReplicas)
	other := &grant{b: b, key: "none", name: "none", holder: "x"}
	_, err = other.Renew(ctx, time.Minute)
	requireLost(t, err, locker.ReasonExpired)
	b.RenewAll(ctx, []locker.Renewal{{Grant: g, TTL: time.Minute}, {Grant: other, TTL: time.Minute}}, func(i int, _ locker.Lease, err error) {
		if i == 0 {
			require.ErrorIs(t, err, ErrReplicas)
		} else {
			requireLost(t, err, locker.ReasonExpired)
		}
	})

	require.NoError(t, replica.Resume())
	require.Eventually(t, func() bool {
		_, err := g.Renew(ctx, time.Minute)
		return err == nil
	}, soon, 10*time.Millisecond)
	requireFree(t, b, "k")
	require.NoError(t, g.Release(ctx))
}

func TestReplicas_cycleIsTwoRequestsAndABatchWaitsOnce(t *testing.T) {
	t.Parallel()
	master, _ := startReplicated(t)
	w, admin := &wire{}, connect(t, master)
	b := replicated(t, connect(t, master, w.use))
	requireFree(t, b, "warm")
	writes, requests, waits := w.writes.Load(), w.requests.Load(), calls(t, admin, "wait")
	for range 100 {
		requireFree(t, b, "k")
	}
	require.EqualValues(t, 200, w.writes.Load()-writes)
	require.EqualValues(t, 300, w.requests.Load()-requests)
	require.Equal(t, 100, calls(t, admin, "wait")-waits)

	_, err := take(t, b, "renewed", time.Minute).Renew(t.Context(), time.Minute) // loads the script
	require.NoError(t, err)
	var renewals []locker.Renewal
	for i := range 100 {
		renewals = append(renewals, locker.Renewal{Grant: take(t, b, fmt.Sprint(i), time.Minute), TTL: time.Minute})
	}
	for _, want := range []int{1, 2} { // with an empty script cache, a second pipeline
		waits = calls(t, admin, "wait")
		b.RenewAll(t.Context(), renewals, func(_ int, _ locker.Lease, err error) { require.NoError(t, err) })
		require.Equal(t, want, calls(t, admin, "wait")-waits)
		require.NoError(t, admin.ScriptFlush(t.Context()).Err())
	}
	// None of the grants either is lost to the empty cache. C84
	require.NoError(t, admin.ScriptFlush(t.Context()).Err())
	requireFree(t, b, "k")
}

func TestReplicas_lostReplyIsUndone(t *testing.T) { // G4, C01
	t.Parallel()
	master, _ := startReplicated(t)
	w, admin := &wire{}, connect(t, master)
	b := replicated(t, connect(t, master, w.use))
	requireFree(t, b, "warm")
	w.drop(1, acquireScript.sha)
	g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.Error(t, err)
	require.NotNil(t, g)
	require.EqualValues(t, 1, admin.Exists(t.Context(), "k").Val())
	require.NoError(t, g.Release(t.Context()))
	requireFree(t, b, "k")
}

func TestReplicas_withoutThePermissionToWaitNothingStaysTaken(t *testing.T) { // C85
	t.Parallel()
	master, _ := startReplicated(t)
	for _, rules := range []string{documentedACL, documentedACL + " +wait"} {
		b, err := newBackend(connectAs(t, master, rules), &Config{Prefix: "app:", Replicas: 1})
		require.NoError(t, err)
		l, err := locker.New(b, nil)
		require.NoError(t, err)
		k, err := l.Acquire(t.Context(), "k")
		if rules == documentedACL {
			require.ErrorContains(t, err, "NOPERM")
			require.Eventually(t, func() bool {
				return connect(t, master).Exists(t.Context(), "app:k").Val() == 0
			}, soon, 5*time.Millisecond)
		} else {
			require.NoError(t, err)
			require.NoError(t, k.Release(t.Context()))
		}
		require.NoError(t, l.Close(context.Background()))
	}
}

func TestReplicas_aWaiterRidesThroughAnInterruption(t *testing.T) { // W4, C15
	t.Parallel()
	master, replica := startReplicated(t)
	var kinds [2]atomic.Int64 // renewals that failed, renewals
	l := lockerOn(t, connect(t, master), &Config{Replicas: 1, ReplicaTimeout: 50 * time.Millisecond, Config: locker.Config{
		TTL: 3 * time.Second,
		Observer: func(e locker.Event) {
			switch e.Kind {
			case locker.EventRenewalFailed:
				kinds[0].Add(1)
			case locker.EventRenewed:
				kinds[1].Add(1)
			}
		},
	}})
	held, err := l.Acquire(t.Context(), "held")
	require.NoError(t, err)
	require.NoError(t, replica.Pause())
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, ErrReplicas)
	require.NotErrorIs(t, err, locker.ErrHeld)
	got := make(chan error, 1)
	var k locker.Lock
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*soon)
		defer cancel()
		var err error
		k, err = l.Acquire(ctx, "k")
		got <- err
	}()
	require.Eventually(t, func() bool { return kinds[0].Load() >= 2 }, soon, time.Millisecond, "renewals fail, and are repeated")
	require.NoError(t, held.Err())
	require.Empty(t, got, "nor is anything granted")
	renewed := kinds[1].Load()
	require.NoError(t, replica.Resume())
	require.NoError(t, <-got)
	require.Eventually(t, func() bool { return kinds[1].Load() > renewed }, soon, time.Millisecond)
	require.NoError(t, held.Err())
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, k.Release(t.Context()))
}

func requireFailed(t *testing.T, failed <-chan error) {
	t.Helper()
	select {
	case err := <-failed:
		require.ErrorIs(t, err, ErrReplicas)
	case <-time.After(soon):
		require.Fail(t, "no renewal has failed for want of replicas")
	}
}

// What the replica does not have, a failover takes away. With WAIT, it is not granted,
// and what was granted is lost by its Deadline, as the replica knows its life.
// renewalFailures is an observer that passes on the first failure of a renewal for
// want of replicas.
func renewalFailures() (func(locker.Event), <-chan error) {
	failed := make(chan error, 1)
	return func(e locker.Event) {
		if e.Kind == locker.EventRenewalFailed && errors.Is(e.Err, ErrReplicas) {
			select {
			case failed <- e.Err:
			default:
			}
		}
	}, failed
}

func TestReplicas_promotionOfALaggingReplica(t *testing.T) { // G1, H2, C89
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprint(replicas, " replicas"), func(t *testing.T) {
			t.Parallel()
			master, replica := startReplicated(t)
			failures, failed := renewalFailures()
			l, err := New(connect(t, master), &Config{Replicas: replicas, Config: locker.Config{
				TTL:      3 * time.Second,
				Observer: failures,
			}})
			require.NoError(t, err)
			ctx := t.Context()
			defer func() {
				over, cancel := context.WithCancel(ctx)
				cancel()
				_ = l.Close(over) // its server is gone
			}()
			before, err := l.Acquire(ctx, "before")
			require.NoError(t, err)
			if replicas == 0 { // let it arrive
				there := connect(t, replica)
				require.Eventually(t, func() bool { return there.Exists(ctx, "before").Val() == 1 }, soon, time.Millisecond)
			}
			cut(t, replica)
			late, err := l.TryAcquire(ctx, "late")
			if replicas == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrReplicas)
			}
			deadline := before.Deadline()
			if replicas == 0 {
				require.Eventually(t, func() bool { return before.Deadline() != deadline }, soon, time.Millisecond)
			} else {
				requireFailed(t, failed)
				require.Equal(t, deadline, before.Deadline())
			}
			require.NoError(t, master.Kill())
			promote(t, replica)
			next := lockerOn(t, connect(t, replica), nil)
			k, err := next.TryAcquire(ctx, "late")
			require.NoError(t, err, "the replica has never heard of it")
			if replicas == 0 {
				require.NoError(t, late.Err(), "two holders: what the package comment warns of")
				require.Greater(t, k.Token(), late.Token(), "which the fence tells apart")
				return
			}
			// The key was free by the end of the old holder's lock, not before.
			again, err := next.Acquire(ctx, "before")
			require.NoError(t, err)
			require.Error(t, before.Err(), "the old holder knew first")
			require.False(t, time.Now().Before(deadline))
			require.Greater(t, again.Token(), before.Token())
			var lost *locker.LostError
			require.ErrorAs(t, before.Err(), &lost)
			require.Equal(t, locker.ReasonExpired, lost.Reason)
			require.NoError(t, again.Release(ctx))
		})
	}
}

// An extension that the replica has not got leaves the master with a longer life than
// renewals ask for. They find nothing to do there, and must not count for that.
func TestReplicas_aRenewalDoesNotCountBecauseTheMasterHasMore(t *testing.T) { // G1, H2, C89
	t.Parallel()
	master, replica := startReplicated(t)
	b := replicated(t, connect(t, master))
	ctx := t.Context()
	g := take(t, b, "k", 10*time.Second)
	require.NoError(t, replica.Pause())
	_, err := b.Extend(ctx, g, time.Hour)
	require.ErrorIs(t, err, ErrReplicas)
	// Another connection, as of a pool, has written nothing; WAIT waits all the same for
	// all that the server had written before its last command.
	again := replicated(t, connect(t, master))
	same := &grant{b: again, key: g.key, name: g.name, holder: g.holder}
	_, err = same.Renew(ctx, 10*time.Second)
	require.ErrorIs(t, err, ErrReplicas)
	again.RenewAll(ctx, []locker.Renewal{{Grant: same, TTL: 10 * time.Second}}, func(_ int, _ locker.Lease, err error) {
		require.ErrorIs(t, err, ErrReplicas)
	})
	require.NoError(t, replica.Resume())
	require.Eventually(t, func() bool {
		_, err := same.Renew(ctx, 10*time.Second)
		return err == nil
	}, soon, 10*time.Millisecond)
	there := connect(t, replica)
	require.Greater(t, there.PTTL(ctx, "k").Val(), 59*time.Minute, "nor does a renewal shorten")
	require.NoError(t, g.Release(ctx))
}

// The one that has acknowledged need not be the one that is promoted.
func TestReplicas_fewerThanAllAreNotEnough(t *testing.T) { // C89
	t.Parallel()
	master, fresh := startReplicated(t)
	lagging, err := testenv.StartReplica(t.Context(), master, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lagging.Stop()) })
	cut(t, lagging)
	all, err := newBackend(connect(t, master), &Config{Replicas: 2, ReplicaTimeout: 100 * time.Millisecond})
	require.NoError(t, err)
	defer all.Close(context.Background())
	_, err = all.TryAcquire(t.Context(), request("k", time.Minute))
	require.ErrorIs(t, err, ErrReplicas, "with all of them it is refused")
	g := take(t, replicated(t, connect(t, master)), "k", time.Minute)
	require.Equal(t, g.holder, connect(t, fresh).Get(t.Context(), "k").Val())

	promote(t, lagging)
	second := take(t, backendOn(t, connect(t, lagging), ""), "k", time.Minute)
	require.Greater(t, second.token, g.token, "the fence tells them apart")
}

func TestReplicas_lostAtTheDeadlineAndNotLater(t *testing.T) { // H2, C31
	t.Parallel()
	master, replica := startReplicated(t)
	failures, failed := renewalFailures()
	l := lockerOn(t, connect(t, master), &Config{Replicas: 1, Config: locker.Config{TTL: 3 * time.Second, Observer: failures}})
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, replica.Pause())
	// A renewal under way may have been acknowledged before the pause; no later one is.
	select {
	case <-k.Done():
	case <-time.After(soon):
		require.Fail(t, "the lock goes on")
	}
	require.WithinDuration(t, k.Deadline(), time.Now(), time.Second)
	var lost *locker.LostError
	require.ErrorAs(t, k.Err(), &lost)
	require.Equal(t, locker.ReasonExpired, lost.Reason)
	requireFailed(t, failed)
	require.NoError(t, replica.Resume())
	again, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, again.Release(t.Context()))
}

// A WAIT goes to the node that has the key, and so do we after a redirection.
func TestReplicas_inACluster(t *testing.T) { // C83
	c, err := testenv.StartCluster(t.Context(), nil)
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	ctx := t.Context()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ClusterStateReloadInterval: time.Hour})
	t.Cleanup(func() { _ = rdb.Close() })
	b := replicated(t, rdb)
	requireFree(t, b, "{k}") // the client knows the cluster now

	admin := func(r *testenv.Redis, args ...any) string {
		reply, err := connect(t, r).Do(ctx, args...).Text()
		require.NoError(t, err)
		return reply
	}
	from, err := c.MasterFor(ctx, "{k}")
	require.NoError(t, err)
	to, err := c.MasterFor(ctx, "{other}")
	require.NoError(t, err)
	require.NotEqual(t, from, to)

	// The slot is on its way: what is not there yet is asked for at the other node.
	held := take(t, b, "{k}held", time.Minute)
	slot := int(slotOf("{k}"))
	fromID, toID := admin(from, "CLUSTER", "MYID"), admin(to, "CLUSTER", "MYID")
	admin(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	admin(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, err := net.SplitHostPort(to.Addr())
	require.NoError(t, err)
	admin(from, "MIGRATE", host, port, "", 0, 5000, "KEYS", "{k}held", b.counter("{k}held"))
	renewals := []locker.Renewal{{Grant: held, TTL: time.Minute}}
	_, err = held.Renew(ctx, time.Minute)
	require.NoError(t, err)
	b.RenewAll(ctx, renewals, func(_ int, _ locker.Lease, err error) { require.NoError(t, err) })
	g, err := b.TryAcquire(ctx, request("{k}new", time.Minute)) // a script of two keys has to wait
	require.ErrorContains(t, err, "TRYAGAIN")
	require.Nil(t, g)
	require.False(t, b.isPermanent(err))

	// It is over: the client's map is out of date, and what it is told is followed.
	for _, r := range []*testenv.Redis{to, from} {
		admin(r, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	moved := take(t, b, "{k}moved", time.Minute)
	require.Greater(t, moved.token, held.token)
	b.RenewAll(ctx, renewals, func(_ int, _ locker.Lease, err error) { require.NoError(t, err) })
	for _, g := range []*grant{held, moved} {
		require.EqualValues(t, 1, connect(t, to).Exists(ctx, g.name).Val())
		require.NoError(t, g.Release(ctx))
	}

	// Without its replica the node refuses, and the others do not care.
	for _, r := range c.Nodes() {
		role, err := connect(t, r).Do(ctx, "ROLE").Slice()
		require.NoError(t, err)
		if role[0] == "slave" && fmt.Sprint(role[2]) == port {
			require.NoError(t, r.Pause())
			defer func() { require.NoError(t, r.Resume()) }()
		}
	}
	_, err = b.TryAcquire(ctx, request("{k}", time.Minute))
	require.ErrorIs(t, err, ErrReplicas)
	var free string
	for i := 0; free == ""; i++ {
		key := fmt.Sprint(i)
		if r, err := c.MasterFor(ctx, key); err == nil && r != to {
			free = key
		}
	}
	requireFree(t, b, free)
}
