package pglock

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// advisoryOn makes a backend, and the sequence if need be. The test's end closes it.
func advisoryOn(t *testing.T, pool *pgxpool.Pool, cfg Config) *advisory {
	t.Helper()
	cfg.Create = true
	b, err := newAdvisory(t.Context(), pool, &cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// sessionOf is the session that a grant is on.
func sessionOf(g locker.Grant) *session { return g.(*grant).s }

// endsSoon waits for the end of a session.
func endsSoon(t *testing.T, s *session) {
	t.Helper()
	require.Eventually(t, func() bool { return s.ended() != nil }, soon, time.Millisecond)
}

// losses collects what a backend reports, by key.
func losses(b locker.LossPusher) func() []string {
	var mu sync.Mutex
	var keys []string
	b.OnLoss(func(key, _ string, _ error) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, key)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(keys))
	}
}

func TestSessions_locksOfOneTTLShareOne(t *testing.T) {
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{})
	first := take(t, b, request("a", time.Minute))
	require.Same(t, sessionOf(first), sessionOf(take(t, b, request("b", time.Minute))))
	other := take(t, b, request("c", time.Hour))
	require.NotSame(t, sessionOf(first), sessionOf(other))
	require.Equal(t, "3600000", value[string](t, b.pool, "SELECT extract(epoch FROM interval '1 hour')::bigint * 1000 || ''"))
	require.Equal(t, time.Hour, other.Lease().TTL)
	_, err := other.Renew(t.Context(), time.Minute)
	require.ErrorIs(t, err, locker.ErrUnsupported, "R4: the lock's own TTL only")
}

func TestSessions_areOfFourTTLsAtMost(t *testing.T) { // R4
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{})
	var held []locker.Grant
	for i := range maxTTLs {
		held = append(held, take(t, b, request(fmt.Sprint(i), time.Duration(i+1)*time.Minute)))
	}
	g, err := b.TryAcquire(t.Context(), request("more", time.Hour))
	require.Nil(t, g)
	require.ErrorIs(t, err, locker.ErrUnsupported)
	take(t, b, request("same", time.Minute))

	idle := sessionOf(held[2])
	require.NoError(t, held[2].Release(t.Context()))
	take(t, b, request("more", time.Hour))
	endsSoon(t, idle)
	_, err = b.TryAcquire(t.Context(), request("again", 3*time.Minute))
	require.ErrorIs(t, err, locker.ErrUnsupported, "the other four have locks")
	for _, i := range []int{0, 1, 3} {
		require.NoError(t, held[i].Release(t.Context()), "they were left alone")
	}
}

// The sessions of a TTL that makes room go together, however many it has.
func TestSessions_makeRoomWithAllOfATTL(t *testing.T) { // R4
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{Sessions: 8})
	idle := make(map[*session]bool)
	for i := range 32 {
		g := take(t, b, request(fmt.Sprint(i), 2*time.Minute))
		idle[sessionOf(g)] = true
		require.NoError(t, g.Release(t.Context()))
	}
	require.Greater(t, len(idle), 1)
	for i := range maxTTLs {
		take(t, b, request(fmt.Sprint(i), time.Duration(i+3)*time.Minute))
	}
	for s := range idle {
		endsSoon(t, s)
	}
	_, err := b.TryAcquire(t.Context(), request("more", 2*time.Minute))
	require.ErrorIs(t, err, locker.ErrUnsupported)
}

// A session whose server owes an answer may never have one.
func TestSessions_newLocksGoAroundOneThatIsSilent(t *testing.T) { // R4
	database := newDatabase(t)
	pool := connect(t, database)
	b := advisoryOn(t, connect(t, database), Config{})
	old := take(t, b, request("old", time.Minute))
	silent := sessionOf(old)
	answer, free := occupy(t, pool, silent.wire)
	require.Eventually(t, func() bool { return !silent.usable() }, soon, time.Millisecond)
	start := time.Now()
	next := take(t, b, request("next", time.Minute))
	require.Less(t, time.Since(start), soon/2)
	require.NotSame(t, silent, sessionOf(next))
	require.NoError(t, silent.ended(), "it has a lock")
	requireHeld(t, advisoryOn(t, pool, Config{}), "old")
	free()
	require.NoError(t, answered(t, answer))
	_, err := old.Renew(t.Context(), time.Minute)
	require.NoError(t, err)
	require.NotSame(t, silent, sessionOf(take(t, b, request("later", time.Minute))), "it has resigned")
	require.NoError(t, old.Release(t.Context()))
	endsSoon(t, silent)
}

// A release that has no answer yet is not forgotten: the session takes no new locks, and
// ends when it is known, or with its last live lock.
func TestSessions_oneWithAnUnfinishedEndTakesNoMoreLocks(t *testing.T) { // R4, C21
	database := newDatabase(t)
	pool := connect(t, database)
	b := advisoryOn(t, connect(t, database), Config{})
	lost := losses(b)
	live, g := take(t, b, request("live", time.Minute)), take(t, b, request("k", time.Minute))
	s := sessionOf(g)
	_, free := occupy(t, pool, s.wire)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, g.Release(ctx), context.Canceled)
	require.NotSame(t, s, sessionOf(take(t, b, request("next", time.Minute))))
	free()
	require.NoError(t, g.Release(t.Context()), "the same one")
	require.NoError(t, s.ended())
	requireFree(t, b, "k")
	require.NoError(t, live.Release(t.Context()))
	endsSoon(t, s)
	require.Empty(t, lost())
}

func TestSessions_takeNoMoreThanMaxLocks(t *testing.T) { // C116
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{MaxLocks: 3})
	var held []locker.Grant
	for i := range 3 {
		held = append(held, take(t, b, request(fmt.Sprint(i), time.Duration(1+i)*time.Minute)))
	}
	for range 2 {
		g, err := b.TryAcquire(t.Context(), request("more", time.Minute))
		require.Nil(t, g)
		require.ErrorContains(t, err, "MaxLocks")
		require.NotErrorIs(t, err, locker.ErrHeld)
	}
	requireHeld(t, b, "0")
	require.NoError(t, held[1].Release(t.Context()))
	take(t, b, request("more", time.Minute))
}

func TestSessions_loseTheirOwnLocksOnly(t *testing.T) { // H5, R4
	database := newDatabase(t)
	b := advisoryOn(t, connect(t, database), Config{Sessions: 3})
	lost := losses(b)
	keys := make(map[*session][]string)
	for i := range 30 {
		key := fmt.Sprintf("%02d", i)
		s := sessionOf(take(t, b, request(key, time.Minute)))
		keys[s] = append(keys[s], key)
	}
	require.Len(t, keys, 3)
	for s, its := range keys {
		exec(t, b.pool, "SELECT pg_terminate_backend("+s.pid+")")
		require.Eventually(t, func() bool { return len(lost()) == len(its) }, soon, time.Millisecond)
		require.Equal(t, its, lost())
		for _, key := range its { // C49, C108: on a new one
			requireFree(t, b, key)
		}
		break
	}
}

func TestSessions_endAfterTheirTTLWithoutLocks(t *testing.T) { // House
	database := newDatabase(t)
	b := advisoryOn(t, connect(t, database), Config{})
	const ttl = 200 * time.Millisecond
	g := take(t, b, request("k", ttl))
	s := sessionOf(g)
	require.NoError(t, g.Release(t.Context()))
	endsSoon(t, s)
	require.ErrorContains(t, s.ended(), "57P05")
	require.NotSame(t, s, sessionOf(take(t, b, request("k", ttl))))
}

// One whose client is silent ends on the server, too: nobody renews.
func TestSessions_endWithTheirSilence(t *testing.T) { // W1, C48
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{})
	lost := losses(b)
	take(t, b, request("k", 200*time.Millisecond))
	require.Eventually(t, func() bool { return len(lost()) == 1 }, soon, time.Millisecond)
	requireFree(t, b, "k")
}

// To the server they are one lock, which a session may take twice.
func TestSessions_keysOfOneNumberMeet(t *testing.T) { // K1, G1, C94
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{})
	b.inspector.number = func(string) int64 { return 7 }
	g := take(t, b, request("a", time.Minute))
	for _, ttl := range []time.Duration{time.Minute, time.Hour} { // of its session, and of another one
		other, err := b.TryAcquire(t.Context(), request("b", ttl))
		require.Nil(t, other)
		var held *locker.HeldError
		require.ErrorAs(t, err, &held)
		require.Contains(t, held.Holder, "pid "+sessionOf(g).pid)
	}
	require.NoError(t, g.Release(t.Context()))
	requireFree(t, b, "b")
}

// Its making goes on: the next one finds it.
func TestSessions_anAttemptThatGivesUpLeavesTheSessionToOthers(t *testing.T) { // G6
	b := advisoryOn(t, connect(t, newDatabase(t)), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g, err := b.TryAcquire(ctx, request("k", time.Hour))
	require.Nil(t, g)
	require.ErrorIs(t, err, context.Canceled)
	s := sessionOf(take(t, b, request("k", time.Hour)))
	require.Equal(t, 1, value[int](t, b.pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", s.name))
}

func TestSessions_closeEndsThemOnTheServer(t *testing.T) { // House, C96
	database := newDatabase(t)
	pool := connect(t, database)
	b := advisoryOn(t, connect(t, database), Config{Sessions: 2})
	for i := range 10 {
		take(t, b, request(fmt.Sprint(i), time.Minute))
	}
	require.NoError(t, b.Close(t.Context()))
	require.Eventually(t, func() bool { return advisoryLocks(t, pool) == 0 }, soon, time.Millisecond)
	_, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.ErrorIs(t, err, locker.ErrClosed)
}

// A role may become another one as it connects (ALTER ROLE … SET role), which may neither see
// nor end the sessions of the first.
func TestSessions_oneThatLostItsClientIsEndedWhateverTheRoleBecomes(t *testing.T) { // R1
	database := newDatabase(t)
	admin := connect(t, database)
	url, app := newRole(t, database)
	_, owner := newRole(t, database)
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	exec(t, admin, "GRANT "+quoted(owner)+" TO "+quoted(app))
	exec(t, admin, "GRANT CREATE ON SCHEMA public TO "+quoted(owner))
	exec(t, admin, "ALTER ROLE "+quoted(app)+" SET role = "+literal(owner))
	for mode, open := range onSessions {
		t.Run(mode, func(t *testing.T) {
			var way faultnet.Network
			t.Cleanup(way.Close)
			b := open(t, connect(t, url, func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = way.Dial }))
			g := take(t, b, request("k", time.Minute))
			lose(t, &way, g)
			requireLost(t, g.Release(t.Context()), locker.ReasonSession)
			requireFree(t, b, "k")
		})
	}
}

// What has lost its client may hold its locks for as long as they live. It is ended as soon
// as the server can be reached, whether or not somebody waits for it.
func TestSessions_oneThatLostItsClientIsEndedWhenTheNetworkIsBack(t *testing.T) { // R1, R2, G4
	database := newDatabase(t)
	for mode, open := range onSessions {
		t.Run(mode, func(t *testing.T) {
			for name, release := range map[string]bool{"held": false, "released": true} {
				t.Run(name, func(t *testing.T) {
					var way faultnet.Network
					t.Cleanup(way.Close)
					b := open(t, connect(t, database, func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = way.Dial }))
					other := open(t, connect(t, database))
					g := take(t, b, request(name, time.Minute))
					way.Set(faultnet.Refused)
					lose(t, &way, g)
					if release {
						start := time.Now()
						requireLost(t, g.Release(t.Context()), locker.ReasonSession)
						require.Less(t, time.Since(start), connectBound)
					}
					refused := way.Hits()
					require.Eventually(t, func() bool { return way.Hits() > refused+2 }, soon, time.Millisecond, "it tries again")
					requireHeld(t, other, name)
					way.Set(faultnet.None)
					require.Eventually(t, func() bool {
						g, err := other.TryAcquire(t.Context(), request(name, time.Minute))
						return err == nil && g.Release(t.Context()) == nil
					}, soon, 10*time.Millisecond)
				})
			}
		})
	}
}

// The undo may have to wait until the server can be reached again. The caller has not.
func TestSessions_anAttemptWithoutAnAnswerDoesNotWaitForItsUndo(t *testing.T) { // G4, G7, W4
	database := newDatabase(t)
	for mode, open := range onSessions {
		t.Run(mode, func(t *testing.T) {
			var way faultnet.Network
			t.Cleanup(way.Close)
			var refused atomic.Bool
			b := open(t, connect(t, database, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					if refused.Load() {
						return nil, syscall.ECONNREFUSED
					}
					return way.Dial(ctx, network, address)
				}
			}))
			other := open(t, connect(t, database))
			require.NoError(t, take(t, b, request("k", time.Minute)).Release(t.Context())) // there is a session
			refused.Store(true)
			way.DropReplies(1, nil)
			ctx, cancel := context.WithTimeout(t.Context(), stuckAfter/2)
			defer cancel()
			g, err := b.TryAcquire(ctx, request("k", time.Minute))
			require.Error(t, err)
			require.NoError(t, ctx.Err(), "it is told at once: %v", err)
			require.NotErrorIs(t, err, locker.ErrHeld)
			require.NotNil(t, g, "it may have been taken")
			requireLost(t, g.Release(t.Context()), locker.ReasonSession)
			refused.Store(false)
			require.Eventually(t, func() bool { return g.Release(t.Context()) == nil }, soon, time.Millisecond)
			requireFree(t, other, "k")
		})
	}
}

// A call returns by its deadline, also if it is not known by then what has become of it.
func TestSessions_aReleaseHasADeadline(t *testing.T) { // R2
	database := newDatabase(t)
	for mode, open := range onSessions {
		t.Run(mode, func(t *testing.T) {
			var way faultnet.Network
			t.Cleanup(way.Close)
			b := open(t, connect(t, database, func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = way.Dial }))
			g := take(t, b, request("k", time.Minute))
			way.Set(faultnet.Refused)
			lose(t, &way, g)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, g.Release(ctx), context.DeadlineExceeded)
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			requireLost(t, g.Release(cancelled), locker.ReasonSession) // by the news of the loss, which is no deadline
		})
	}
}

// To a session that was ended in order nothing is left to do: by then a pooler may have given
// it to another client.
func TestSessions_whatEndsInOrderIsNotEndedAgain(t *testing.T) {
	var way faultnet.Network
	t.Cleanup(way.Close)
	b := advisoryOn(t, connect(t, newDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = way.Dial }), Config{})
	g := take(t, b, request("k", time.Minute)).(*grant)
	require.NoError(t, g.Release(t.Context()))
	dials := way.Dials()
	b.mu.Lock()
	b.resign(g.s)
	b.mu.Unlock()
	select {
	case <-g.w.settled:
	case <-time.After(soon):
		require.Fail(t, "it is not settled")
	}
	require.Equal(t, dials, way.Dials())
	require.False(t, g.w.over(), "the server's word is not there")
}

// A role that does not see the session, and a standby, cannot say that it is over.
func TestSessions_areOverWhenThePrimaryCanSaySo(t *testing.T) { // R1, G1
	database := newDatabase(t)
	exec(t, connect(t, database), "GRANT CREATE ON SCHEMA public TO public")
	first, _ := newRole(t, database)
	second, _ := newRole(t, database)
	for mode, open := range onSessions {
		t.Run(mode, func(t *testing.T) {
			g := take(t, open(t, connect(t, first)), request(mode, time.Minute))
			w := wireOf(g)
			require.False(t, newConnector(connect(t, second), time.Second).endOnServer(t.Context(), w))
			require.NoError(t, w.ended())
			require.True(t, newConnector(connect(t, first), time.Second).endOnServer(t.Context(), w))
			require.Eventually(t, func() bool { return w.ended() != nil }, soon, time.Millisecond)
			require.True(t, w.over())
		})
	}
}

// onSessions are the backends whose locks are a session's.
var onSessions = map[string]func(*testing.T, *pgxpool.Pool) locker.Backend{
	"advisory": func(t *testing.T, p *pgxpool.Pool) locker.Backend { return advisoryOn(t, p, Config{}) },
	"row": func(t *testing.T, p *pgxpool.Pool) locker.Backend {
		b, err := newRow(t.Context(), p, &RowConfig{Create: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
		return b
	},
}

func wireOf(g locker.Grant) *wire {
	if g, ok := g.(*grant); ok {
		return g.w
	}
	return g.(*soloGrant).w
}

// lose ends the connection of a grant's session without the server's hearing of it.
func lose(t *testing.T, way *faultnet.Network, g locker.Grant) {
	t.Helper()
	way.Strand()
	w := wireOf(g)
	_ = w.conn.Close()
	require.Eventually(t, func() bool { return w.ended() != nil }, soon, time.Millisecond)
}
