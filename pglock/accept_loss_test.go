package pglock

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// What the holder is told of is the end of its session, at once, and then it goes on.
func TestLoss_aTerminatedSessionIsToldWithin50ms(t *testing.T) { // H5, R1, C108
	for _, mode := range []string{"advisory", "row"} {
		t.Run(mode, func(t *testing.T) { // by itself: what else runs would be measured too
			database := newDatabase(t)
			pool := connect(t, database)
			l := openOn(t, database, mode, nil)
			var told, released figures
			for i := range 20 {
				k := acquire(t, l, "k")
				pid := holderPID(t, l, "k")
				start := time.Now()
				require.True(t, value[bool](t, pool, "SELECT pg_terminate_backend($1)", pid))
				select {
				case <-k.Done():
					told.add(time.Since(start))
				case <-time.After(soon):
					t.Fatal("not told in trial", i)
				}
				requireLost(t, k.Err(), locker.ReasonSession)
				start = time.Now()
				require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)
				released.add(time.Since(start))
			}
			told.print(t, "told", 50*time.Millisecond, time.Second)
			released.print(t, "released", 200*time.Millisecond, 2*time.Second)
			// Nothing broken is in the pool, nor in the Locker.
			for range 200 {
				exec(t, pool, "SELECT 1")
			}
			require.NoError(t, acquire(t, l, "k").Release(t.Context()))
		})
	}
}

// A stopped process holds its key for no longer than its lease, although its listen session
// has notifications that it does not read.
func TestLoss_aStoppedHolderIsFreedByItsTTLWhileNotificationsFlow(t *testing.T) { // H2, W1
	t.Parallel()
	const ttl, trials = 2 * time.Second, 3
	for _, mode := range []string{"advisory", blockedMode, "row", "lease"} {
		t.Run(nameOfMode(mode), func(t *testing.T) {
			t.Parallel()
			database := newDatabase(t)
			pool := connect(t, database)
			cfg := &locker.OpenConfig{Config: locker.Config{TTL: ttl}}
			one, two := openOn(t, database, mode, cfg), openOn(t, database, mode, cfg)
			acquire(t, one, "watched") // by the children, which listen therefore

			ctx, stop := context.WithCancel(t.Context())
			handed := make(chan int)
			for _, l := range []locker.Locker{one, two} {
				go func() {
					n := 0
					for ctx.Err() == nil {
						_ = locker.Do(ctx, l, "others", func(context.Context, locker.Lock) error {
							n++
							time.Sleep(5 * time.Millisecond) // work, so that the other one comes to wait
							return nil
						})
					}
					handed <- n
				}()
			}
			var freed figures
			for i := range trials {
				key := fmt.Sprint("k", i)
				c := startChild(t, withMode(database, mode), ttl, key, "watched")
				w := waitFor(t, one, key)
				if mode == "advisory" || mode == "lease" {
					number := Key("", key)
					if mode == "lease" {
						number = Key("locker_lease", key)
					}
					awaitMarks(t, pool, number, 1)
				} else {
					blocked(t, pool)
				}
				require.NoError(t, c.stop())
				start := time.Now()
				k, at := w.lock(t)
				freed.add(at.Sub(start))
				assert.Greater(t, k.Token(), c.token)
			}
			stop()
			total := <-handed + <-handed
			freed.print(t, "free", ttl+time.Second, ttl+5*time.Second)
			t.Logf("beside %d grants of another key, between two who wait for each other", total)
			require.Greater(t, total, 100)
		})
	}
}

// vanishing is a holder whose machine vanishes.
type vanishing struct {
	conns *traffic
	grant locker.Grant
	state string // of its session meanwhile
}

// Keepalives find out that the client's machine is gone, or answers that nobody
// acknowledges do.
func TestLoss_aVanishedMachineIsGivenUp(t *testing.T) { // C107
	t.Parallel()
	network, err := testenv.StartNamespace(t.Context())
	started(t, err)
	t.Cleanup(func() { require.NoError(t, network.Stop()) })
	srv, err := testenv.StartPostgres(t.Context(), &testenv.PostgresConfig{Fast: true, Listen: []netip.Prefix{network.Host()}})
	started(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	far, err := srv.At(srv.URL(), network.Host().Addr())
	require.NoError(t, err)
	pool := connect(t, srv.URL())
	const ttl = 5 * time.Second
	var holders []vanishing
	waits := map[string]waiting{}
	for _, mode := range []string{"advisory", "row"} {
		near := openOn(t, srv.URL(), mode, nil)
		for _, state := range []string{"idle", "answering"} {
			h := vanishing{conns: &traffic{from: network.Dial}, state: state}
			away := connect(t, far, func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = h.conns.dial })
			var b locker.Backend
			if mode == "advisory" {
				b, err = NewBackend(t.Context(), away, &Config{Config: locker.Config{TTL: ttl}, Create: true})
			} else {
				b, err = NewRowBackend(t.Context(), away, &RowConfig{Create: true})
			}
			require.NoError(t, err)
			t.Cleanup(func() { _ = b.(locker.Closer).Close(context.Background()) })
			key := mode + " " + state
			h.grant = take(t, b, request(key, ttl))
			holders = append(holders, h)
			waits[key] = waitFor(t, near, key)
			if mode == "advisory" {
				awaitMarks(t, pool, Key("", key), 1)
			}
		}
	}
	awaitBlocked(t, pool, 2)

	// A server that has got a request, and answers when nobody is there any more, sends the
	// answer again and again, and no keepalives meanwhile.
	require.NoError(t, srv.Pause())
	for _, h := range holders {
		if h.state == "answering" {
			before := h.conns.sent()
			go h.grant.Renew(t.Context(), ttl) //nolint:errcheck // it has no answer
			require.Eventually(t, func() bool { return h.conns.sent() > before }, soon, time.Millisecond)
		}
	}
	require.NoError(t, network.Cut(t.Context()))
	require.NoError(t, srv.Resume())
	cut := time.Now()
	took := map[string]*figures{"idle": {}, "answering": {}}
	for key, w := range waits {
		_, at := w.lock(t)
		_, state, _ := strings.Cut(key, " ")
		took[state].add(at.Sub(cut))
	}
	for state, f := range took {
		f.print(t, "vanished while the session was "+state+": free", ttl+5*time.Second, ttl+10*time.Second)
	}
}
