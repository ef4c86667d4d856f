package redislock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

func TestServer_emptiedScriptCacheIsNotNoticed(t *testing.T) { // C84
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connect(t, srv), "")
	ctx := t.Context()
	flush := func() { require.NoError(t, admin.ScriptFlush(ctx).Err()) }
	flush()
	g := take(t, b, "k", time.Minute)
	flush()
	requireHeld(t, b, "k")
	flush()
	_, err := g.Renew(ctx, time.Minute)
	require.NoError(t, err)
	flush()
	_, err = b.Extend(ctx, g, time.Minute)
	require.NoError(t, err)
	flush()
	_, err = b.Inspect(ctx, "k")
	require.NoError(t, err)
	flush()
	b.RenewAll(ctx, []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
		require.NoError(t, err)
	})
	flush()
	require.NoError(t, g.Release(ctx))
}

func TestServer_outOfMemory(t *testing.T) { // C87
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connect(t, srv), "")
	ctx := t.Context()
	g := take(t, b, "k", time.Minute)
	require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "1").Err())

	_, err := g.Renew(ctx, 2*time.Minute)
	require.NoError(t, err)
	requireHeld(t, b, "k")
	require.NoError(t, g.Release(ctx))
	none, err := b.TryAcquire(ctx, request("k", time.Minute))
	require.Nil(t, none)
	require.True(t, redis.IsOOMError(err), "%v", err)
	require.NotErrorIs(t, err, locker.ErrHeld)
	require.False(t, b.isPermanent(err))
	require.Zero(t, admin.Exists(ctx, "k").Val())

	require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "0").Err())
	requireFree(t, b, "k")
}

func TestServer_refusesWritesForAMoment(t *testing.T) { // C15, C24
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connect(t, srv), "")
	ctx := t.Context()
	g := take(t, b, "k", time.Minute)
	require.NoError(t, admin.ConfigSet(ctx, "min-replicas-to-write", "1").Err())

	_, renewal := g.Renew(ctx, time.Hour)
	none, acquisition := b.TryAcquire(ctx, request("other", time.Minute))
	require.Nil(t, none)
	for _, err := range []error{renewal, acquisition, g.Release(ctx)} {
		require.True(t, redis.IsNoReplicasError(err), "%v", err)
		require.NotErrorIs(t, err, locker.ErrLost)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.False(t, b.isPermanent(err))
	}
	require.LessOrEqual(t, admin.PTTL(ctx, "k").Val(), time.Minute)

	require.NoError(t, admin.ConfigSet(ctx, "min-replicas-to-write", "0").Err())
	require.NoError(t, g.Release(ctx))
}

func TestServer_anotherTypeUnderTheKeyIsPermanent(t *testing.T) {
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "")
	require.NoError(t, rdb.HSet(t.Context(), "k", "field", 1).Err())
	g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.Nil(t, g)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.True(t, b.isPermanent(err))
	require.Equal(t, "hash", rdb.Type(t.Context(), "k").Val())
}

func TestServer_withoutATokenThereIsNoGrant(t *testing.T) {
	rdb := connect(t, startServer(t))
	b := backendOn(t, rdb, "p:")
	ctx := t.Context()
	counter := b.counter("p:k")
	for name, spoil := range map[string]func(){
		"another type": func() { rdb.HSet(ctx, counter, "field", 1) },
		"no number":    func() { rdb.Set(ctx, counter, "nan", 0) },
		"not a whole":  func() { rdb.Set(ctx, counter, "1e300", 0) },
		"too large":    func() { rdb.Set(ctx, counter, "9007199254740991", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, rdb.FlushAll(ctx).Err())
			spoil()
			g, err := b.TryAcquire(ctx, request("k", time.Minute))
			require.Nil(t, g)
			require.ErrorContains(t, err, "WRONGTYPE")
			require.True(t, b.isPermanent(err))
			require.Zero(t, rdb.Exists(ctx, "p:k").Val())
		})
	}
}

func TestToken_risesWhateverHappensBetweenGrants(t *testing.T) { // C127
	srv := startWith(t, &testenv.RedisConfig{AppendOnly: true})
	rdb := connect(t, srv)
	b := backendOn(t, rdb, "p:")
	ctx := t.Context()
	counter := b.counter("p:k")
	var last uint64
	next := func(t *testing.T) *grant {
		g := take(t, b, "k", time.Minute)
		require.Greater(t, g.token, last)
		require.Less(t, g.token, uint64(1)<<53)
		last = g.token
		stored, err := rdb.Get(ctx, counter).Uint64()
		require.NoError(t, err)
		require.Equal(t, g.token, stored)
		require.EqualValues(t, -1, rdb.TTL(ctx, counter).Val(), "the counter has no expiry")
		return g
	}
	end := func(t *testing.T) {
		require.NoError(t, rdb.Del(ctx, "p:k").Err())
	}
	t.Run("release", func(t *testing.T) {
		for range 1000 {
			require.NoError(t, next(t).Release(ctx))
		}
	})
	t.Run("expiry", func(t *testing.T) {
		g := next(t)
		_, err := b.Extend(ctx, g, time.Millisecond)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return rdb.Exists(ctx, "p:k").Val() == 0 }, soon, time.Millisecond)
	})
	t.Run("another client between", func(t *testing.T) {
		require.NoError(t, rdb.SetNX(ctx, "p:k", "them", time.Minute).Err())
		end(t)
		next(t)
		end(t)
	})
	t.Run("another key between", func(t *testing.T) {
		require.Greater(t, take(t, b, "other", time.Minute).token, last)
		next(t)
		end(t)
	})
	t.Run("kill and restart", func(t *testing.T) {
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Restart(ctx))
		next(t)
		end(t)
	})
	t.Run("counter deleted", func(t *testing.T) {
		require.NoError(t, rdb.Del(ctx, counter).Err())
		next(t)
		end(t)
	})
	t.Run("counter ahead of the clock", func(t *testing.T) {
		const ahead uint64 = 1 << 52
		require.NoError(t, rdb.Set(ctx, counter, ahead, time.Hour).Err())
		for n := range uint64(10) {
			require.Equal(t, ahead+1+n, next(t).token, "no digit is lost")
			end(t)
		}
	})
	t.Run("restart and counter ahead of the clock", func(t *testing.T) {
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Restart(ctx))
		next(t)
	})
}

func TestServer_restart(t *testing.T) { // C90
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("append-only file %v", kept), func(t *testing.T) {
			srv := startWith(t, &testenv.RedisConfig{AppendOnly: kept})
			rdb := connect(t, srv)
			b := backendOn(t, rdb, "")
			ctx := t.Context()
			g := take(t, b, "k", time.Minute)
			require.NoError(t, srv.Kill())
			_, err := g.Renew(ctx, time.Minute)
			require.Error(t, err)
			require.NotErrorIs(t, err, locker.ErrLost)
			require.False(t, b.isPermanent(err))
			require.NoError(t, srv.Restart(ctx))

			_, err = g.Renew(ctx, time.Minute)
			if kept {
				require.NoError(t, err)
				require.NoError(t, g.Release(ctx))
			} else {
				requireLost(t, err, locker.ReasonExpired)
				require.Zero(t, rdb.Exists(ctx, "k").Val(), "it was not made again")
			}
			require.Greater(t, take(t, b, "k", time.Minute).token, g.token)
		})
	}
}

func TestServer_failoverThatLosesTheLock(t *testing.T) { // C89
	old := startServer(t, "repl-diskless-sync-delay 0")
	host, port, _ := strings.Cut(old.Addr(), ":")
	replica := startServer(t, "replicaof "+host+" "+port)
	oldDB, newDB := connect(t, old), connect(t, replica)
	before, after := backendOn(t, oldDB, ""), backendOn(t, newDB, "")
	ctx := t.Context()

	// On a replica that is up to date everything is held, or refused.
	synced := take(t, before, "synced", time.Minute)
	require.Eventually(t, func() bool { return newDB.Exists(ctx, "synced").Val() == 1 }, 30*time.Second, 5*time.Millisecond)
	requireHeld(t, after, "synced")
	none, err := after.TryAcquire(ctx, request("free", time.Minute))
	require.Nil(t, none)
	require.True(t, redis.IsReadOnlyError(err), "%v", err)
	require.False(t, after.isPermanent(err))

	require.NoError(t, replica.Pause())
	var lost *grant
	for range 10 {
		lost = take(t, before, "lost", time.Minute)
		require.NoError(t, oldDB.Del(ctx, "lost").Err())
	}
	require.NoError(t, old.Kill())
	require.NoError(t, replica.Resume())
	require.NoError(t, newDB.ReplicaOf(ctx, "NO", "ONE").Err())

	g := take(t, after, "lost", time.Minute)
	require.Greater(t, g.token, lost.token, "the fence holds although the counter was lost too")
	lost.b = after
	_, err = lost.Renew(ctx, time.Minute)
	requireLost(t, err, locker.ReasonTaken)
	synced.b = after
	require.NoError(t, synced.Release(ctx))
}

// documentedACL is the rule of the package's documentation.
const documentedACL = "on >secret ~app:* &app:* +eval +evalsha +get +set +del +time +pttl +pexpire" +
	" +publish +subscribe +unsubscribe +ping"

func TestACL_documentedRuleSuffices(t *testing.T) { // C85
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	words := strings.Join(strings.Fields(strings.ReplaceAll(string(doc), "//", "")), " ")
	require.Contains(t, words, documentedACL)

	srv := startServer(t)
	b := backendOn(t, connectAs(t, srv, documentedACL), "app:")
	ctx := t.Context()
	g := take(t, b, "k", time.Minute)
	watch, err := b.Watch(ctx, "k")
	require.NoError(t, err)
	defer watch.Close()
	requireHeld(t, b, "k")
	_, err = g.Renew(ctx, 2*time.Minute)
	require.NoError(t, err)
	_, err = b.Extend(ctx, g, time.Minute)
	require.NoError(t, err)
	b.RenewAll(ctx, []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
		require.NoError(t, err)
	})
	h, err := b.Inspect(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, g.holder, h.Holder)
	require.NoError(t, g.Release(ctx))
	awaitWake(t, watch)

	log, err := connect(t, srv).Do(ctx, "ACL", "LOG").Slice()
	require.NoError(t, err)
	require.Empty(t, log, "nothing was refused on the way")
}

func TestACL_listNeedsScan(t *testing.T) { // C85
	srv := startServer(t)
	b := backendOn(t, connectAs(t, srv, documentedACL), "app:")
	take(t, b, "k", time.Minute)
	err := b.List(t.Context(), func(string, locker.Holding) bool { return true })
	require.True(t, b.isPermanent(err), "%v", err)
	b = backendOn(t, connectAs(t, srv, documentedACL+" +scan"), "app:")
	require.Len(t, list(t, b), 1)
}

func TestACL_everyRightOfTheRuleIsNeeded(t *testing.T) {
	srv := startServer(t)
	admin := connect(t, srv)
	ctx := t.Context()
	for right := range strings.FieldsSeq(documentedACL) {
		switch right {
		case "+del", "+publish", "+unsubscribe", "+ping":
			continue // there is a way without
		}
		if right[0] != '+' {
			continue
		}
		t.Run(right, func(t *testing.T) {
			require.NoError(t, admin.FlushAll(ctx).Err())
			require.NoError(t, admin.ScriptFlush(ctx).Err())
			b := backendOn(t, connectAs(t, srv, strings.Replace(documentedACL, " "+right, "", 1)), "app:")
			use := func() error {
				g, err := b.TryAcquire(ctx, request("k", time.Minute))
				if err != nil {
					require.Nil(t, g)
					require.Zero(t, admin.Exists(ctx, "app:k").Val(), "nothing stays taken")
					return err
				}
				if _, err := b.TryAcquire(ctx, request("k", time.Minute)); !isHeld(err) {
					return err
				}
				w, err := b.Watch(ctx, "k")
				if err != nil {
					return err
				}
				w.Close()
				if _, err := b.Extend(ctx, g, 2*time.Minute); err != nil {
					return err
				}
				return g.Release(ctx)
			}
			err := use()
			require.Error(t, err)
			require.True(t, b.isPermanent(err), "%v", err)
			require.Regexp(t, "(?i)permission|can't run", err.Error())
		})
	}
}

func isHeld(err error) bool {
	return errors.Is(err, locker.ErrHeld)
}

func TestACL_withoutScriptsNothingIsTaken(t *testing.T) {
	srv := startServer(t)
	admin := connect(t, srv)
	b := backendOn(t, connectAs(t, srv, "on >secret ~* &* +@all -eval -evalsha"), "")
	g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.Nil(t, g)
	require.ErrorContains(t, err, "evalsha", "the missing right has its name")
	require.True(t, b.isPermanent(err))
	require.Zero(t, admin.DBSize(t.Context()).Val())
}

func TestACL_withoutChannelsLocksWorkAndWakeUpsAreRefused(t *testing.T) {
	srv := startServer(t)
	b := backendOn(t, connectAs(t, srv, "on >secret ~* resetchannels +@all"), "")
	ctx := t.Context()
	g := take(t, b, "k", time.Minute)
	watch, err := b.Watch(ctx, "k")
	require.Nil(t, watch)
	require.ErrorContains(t, err, "NOPERM")
	require.True(t, b.isPermanent(err))
	_, err = g.Renew(ctx, time.Minute)
	require.NoError(t, err)
	require.NoError(t, g.Release(ctx))
	requireFree(t, b, "k")
	_, err = b.Watch(ctx, "k") // the same again, and no waiting
	require.ErrorContains(t, err, "NOPERM")
}

func TestACL_whatWasTakenCanBeGivenBackWithoutDEL(t *testing.T) { // C85
	srv := startServer(t)
	b := backendOn(t, connectAs(t, srv, "on >secret ~* &* +@all -del"), "")
	watch := watchOn(t, b, "k")
	g := take(t, b, "k", time.Hour)
	require.NoError(t, g.Release(t.Context()))
	awaitWake(t, watch)
	require.Eventually(t, func() bool {
		_, err := b.TryAcquire(t.Context(), request("k", time.Minute))
		return err == nil
	}, soon, time.Millisecond)
}

func TestACL_keysOutsideThePattern(t *testing.T) {
	srv := startServer(t)
	rdb := connectAs(t, srv, documentedACL)
	b := backendOn(t, rdb, "elsewhere:")
	g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.Nil(t, g)
	require.ErrorContains(t, err, "NOPERM")
	require.True(t, b.isPermanent(err))
	requireFree(t, backendOn(t, rdb, "app:"), "k")
}

func TestServer_wrongPasswordIsPermanent(t *testing.T) {
	srv := startServer(t, "requirepass right")
	for _, password := range []string{"", "wrong"} {
		b := backendOn(t, connect(t, srv, func(o *redis.Options) { o.Password = password }), "")
		g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
		require.Nil(t, g)
		require.True(t, b.isPermanent(err), "%v", err)
		_, err = b.Watch(t.Context(), "k")
		require.True(t, b.isPermanent(err), "%v", err)
	}
}

// connectAs connects as a user with the given rules.
func connectAs(t testing.TB, srv *testenv.Redis, rules string) *redis.Client {
	t.Helper()
	args := []any{"ACL", "SETUSER", "user", "reset"}
	for rule := range strings.FieldsSeq(rules) {
		args = append(args, rule)
	}
	require.NoError(t, connect(t, srv).Do(context.Background(), args...).Err())
	return connect(t, srv, func(o *redis.Options) { o.Username, o.Password = "user", "secret" })
}

func TestCluster_everyKeyWorksWithEitherClient(t *testing.T) { // C83
	srv := startCluster(t)
	admin := connect(t, srv)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{srv.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	ctx := t.Context()
	for name, rdb := range map[string]redis.UniversalClient{"client": connect(t, srv), "cluster client": cluster} {
		for _, prefix := range oddPrefixes {
			t.Run(fmt.Sprintf("%s, prefix %q", name, prefix), func(t *testing.T) {
				b := backendOn(t, rdb, prefix)
				other := backendOn(t, admin, prefix)
				var renewals []locker.Renewal
				var watches []locker.Watch
				for _, key := range oddKeys {
					g := take(t, b, key, time.Minute)
					require.Equal(t, key, requireHeld(t, other, key).Key)
					require.Equal(t, g.holder, admin.Get(ctx, prefix+key).Val())
					require.EqualValues(t, -1, admin.TTL(ctx, b.counter(g.name)).Val())
					renewals = append(renewals, locker.Renewal{Grant: g, TTL: time.Hour})
					watch, err := b.Watch(ctx, key)
					require.NoError(t, err)
					watches = append(watches, watch)
				}
				answered := 0
				b.RenewAll(ctx, renewals, func(_ int, _ locker.Lease, err error) {
					answered++ // one node, one batch, one goroutine
					require.NoError(t, err)
				})
				require.Len(t, renewals, answered)
				for i, key := range oddKeys {
					g := renewals[i].Grant.(*grant)
					require.Greater(t, admin.PTTL(ctx, prefix+key).Val(), 50*time.Minute)
					require.NoError(t, g.Release(ctx))
					awaitWake(t, watches[i])
					watches[i].Close()
					again := take(t, b, key, time.Minute)
					require.Greater(t, again.token, g.token)
					require.NoError(t, again.Release(ctx))
				}
			})
		}
	}
}

func TestCluster_bothClientsUseOneCounterForAKey(t *testing.T) { // C127
	for _, prefix := range oddPrefixes {
		for _, key := range oddKeys {
			single, cluster := names{prefix: prefix}, names{prefix: prefix}
			cluster.slotted.Store(true)
			lock := single.lock(key)
			if slotOf(single.counter(lock)) == slotOf(lock) { // else CROSSSLOT tells the single one
				require.Equal(t, cluster.counter(lock), single.counter(lock), "%q", lock)
			}
		}
	}
}

func TestCluster_documentedRuleSuffices(t *testing.T) { // C85
	t.Parallel()
	srv := startCluster(t)
	admin := connect(t, srv)
	connectAs(t, srv, documentedACL+" +cluster|slots")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{srv.Addr()}, Username: "user", Password: "secret", DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = cluster.Close() })
	b := backendOn(t, cluster, "app:")
	watch := watchOn(t, b, "k")
	for range 10 {
		g := take(t, b, "k", time.Minute)
		b.RenewAll(t.Context(), []locker.Renewal{{Grant: g, TTL: time.Minute}}, func(_ int, _ locker.Lease, err error) {
			require.NoError(t, err)
		})
		require.NoError(t, g.Release(t.Context()))
		awaitWake(t, watch)
	}
	log, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	require.NoError(t, err)
	require.Empty(t, log)
	require.Zero(t, calls(t, admin, "command"))
}

func TestCluster_countersAreOnePerSlot(t *testing.T) { // C127
	t.Parallel()
	srv := startCluster(t)
	rdb := connect(t, srv)
	b := backendOn(t, rdb, "{tag}:")
	for i := range 100 {
		requireFree(t, b, fmt.Sprint(i))
	}
	require.EqualValues(t, 1, rdb.DBSize(t.Context()).Val())

	b = backendOn(t, rdb, "p:")
	for range 3 {
		for i := range 100 {
			requireFree(t, b, fmt.Sprint(i))
		}
	}
	perSlot := make(map[uint16]bool)
	for i := range 100 {
		perSlot[slotOf(fmt.Sprint("p:", i))] = true
	}
	require.EqualValues(t, 1+len(perSlot), rdb.DBSize(t.Context()).Val())
}

func TestCluster_aNodeThatHangsHoldsUpItsOwnLocksOnly(t *testing.T) {
	t.Parallel()
	nodes := []*testenv.Redis{startServer(t, "cluster-enabled yes"), startServer(t, "cluster-enabled yes")}
	admins := []*redis.Client{connect(t, nodes[0]), connect(t, nodes[1])}
	ctx := t.Context()
	require.NoError(t, admins[0].Do(ctx, "CLUSTER", "ADDSLOTSRANGE", 0, slots/2-1).Err())
	require.NoError(t, admins[1].Do(ctx, "CLUSTER", "ADDSLOTSRANGE", slots/2, slots-1).Err())
	host, port, _ := strings.Cut(nodes[1].Addr(), ":")
	require.NoError(t, admins[0].ClusterMeet(ctx, host, port).Err())
	for _, admin := range admins {
		require.Eventually(t, func() bool {
			info, err := admin.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok")
		}, 30*time.Second, 10*time.Millisecond)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr(), nodes[1].Addr()}, ReadTimeout: 2 * time.Second,
	})
	t.Cleanup(func() { _ = cluster.Close() })
	b := backendOn(t, cluster, "")
	var renewals []locker.Renewal
	var on [2]int
	for i := range 100 {
		key := fmt.Sprint(i)
		// A release is heard on whatever node the listener happens to be.
		watch := watchOn(t, b, key)
		g := take(t, b, key, time.Minute)
		require.NoError(t, g.Release(ctx))
		awaitWake(t, watch)
		watch.Close()
		renewals = append(renewals, locker.Renewal{Grant: take(t, b, key, time.Minute), TTL: time.Hour})
		on[slotOf(key)/(slots/2)]++
	}
	require.NotZero(t, on[0])
	require.NotZero(t, on[1])

	require.NoError(t, nodes[1].Pause())
	start := time.Now()
	first := make(chan time.Duration, len(renewals))
	done := make(chan struct{})
	var answered, failed atomic.Int64
	go func() {
		defer close(done)
		b.RenewAll(ctx, renewals, func(i int, _ locker.Lease, err error) {
			answered.Add(1)
			if err != nil {
				failed.Add(1)
				return
			}
			first <- time.Since(start)
		})
	}()
	for range on[0] {
		require.Less(t, <-first, time.Second)
	}
	<-done
	require.EqualValues(t, len(renewals), answered.Load())
	require.EqualValues(t, on[1], failed.Load())
	require.NoError(t, nodes[1].Resume())
}

func TestCluster_withoutSlotsIsATroubleThatPasses(t *testing.T) {
	srv := startServer(t, "cluster-enabled yes")
	b := backendOn(t, connect(t, srv), "")
	g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.Nil(t, g)
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.False(t, b.isPermanent(err))
}

func TestRing_locksWorkAndWakeUpsAreRefused(t *testing.T) {
	one, two := startServer(t), startServer(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr(), "two": two.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	b := backendOn(t, ring, "")
	var renewals []locker.Renewal
	for i := range 20 {
		renewals = append(renewals, locker.Renewal{Grant: take(t, b, fmt.Sprint(i), time.Minute), TTL: time.Hour})
		requireHeld(t, b, fmt.Sprint(i))
	}
	b.RenewAll(t.Context(), renewals, func(_ int, _ locker.Lease, err error) { require.NoError(t, err) })
	for _, r := range renewals {
		require.NoError(t, r.Grant.Release(t.Context()))
	}
	_, err := b.Watch(t.Context(), "0")
	require.ErrorIs(t, err, locker.ErrUnsupported)
}
