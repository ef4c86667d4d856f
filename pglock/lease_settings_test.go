package pglock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// Whatever a role is set to, locks work, and exclude those of others.
func TestLease_worksUnderTheSettingsOfItsRole(t *testing.T) { // C101
	database := newDatabase(t)
	owner := connect(t, database)
	plain := leaseOn(t, owner)
	for _, setting := range []string{
		"", "default_transaction_isolation = 'serializable'", "default_transaction_isolation = 'repeatable read'",
		"standard_conforming_strings = off", "lock_timeout = '200ms'", "statement_timeout = '300ms'",
		"idle_session_timeout = '500ms'", "synchronous_commit = off", "synchronous_commit = remote_apply",
		"datestyle = 'German'", "intervalstyle = 'iso_8601'", "timezone = 'Asia/Kathmandu'", "bytea_output = 'escape'",
		"client_min_messages = debug1", "extra_float_digits = 0", "plan_cache_mode = force_generic_plan", "enable_indexscan = off",
		"search_path = nowhere, public", "row_security = off", "lc_numeric = 'C.UTF-8'", "quote_all_identifiers = on", "backslash_quote = on",
	} {
		t.Run(setting, func(t *testing.T) {
			url, role := newRole(t, database)
			exec(t, owner, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON locker_lease TO %q", role))
			if setting != "" {
				exec(t, owner, fmt.Sprintf("ALTER ROLE %q SET %s", role, setting))
			}
			pool := connect(t, url)
			b, err := newLeaseBackend(t.Context(), pool, &LeaseConfig{})
			require.NoError(t, err)
			defer b.Close(context.Background())
			key := `it's a \key ` + setting
			req := request(key, time.Minute)
			req.Label = `a 'label' \ "x" é`
			g := take(t, b, req)
			require.Equal(t, req.Holder(), requireHeld(t, plain, key).Holder)
			require.InDelta(t, time.Minute, requireHeld(t, b, key).Remaining, float64(soon))
			_, err = g.Renew(t.Context(), 2*time.Minute)
			require.NoError(t, err)
			_, err = b.Extend(t.Context(), g, time.Hour)
			require.NoError(t, err)
			h, err := b.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, g.Token(), h.Token)
			require.NoError(t, g.Release(t.Context()))

			contend(t, b, plain)
		})
	}
}

// contend lets Lockers on the backends have a key in turns.
func contend(t *testing.T, backends ...locker.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex
	var last uint64
	var all sync.WaitGroup
	for _, b := range backends {
		for range 2 {
			// Close is the backend's own, and it is used on.
			l, err := locker.New(struct {
				locker.Backend
				locker.Extender
				locker.Inspector
			}{b, b.(locker.Extender), b.(locker.Inspector)}, &locker.Config{TTL: 5 * time.Second})
			require.NoError(t, err)
			defer l.Close(context.Background())
			all.Go(func() {
				for range 10 {
					k, err := l.Acquire(ctx, "contended")
					if err != nil {
						t.Error(err)
						return
					}
					assert.True(t, mu.TryLock(), "two holders")
					assert.Greater(t, k.Token(), last)
					last = k.Token()
					mu.Unlock()
					assert.NoError(t, k.Release(ctx))
				}
			})
		}
	}
	all.Wait()
}

// 40001 comes in the place of an answer: each statement is sent again, and the answer is
// a definite one as a rule.
func TestLease_serializableRolesGetAnswers(t *testing.T) {
	database := newDatabase(t)
	leaseOn(t, connect(t, database))
	pool := connect(t, withParam(t, database, "default_transaction_isolation", "serializable"))
	b := leaseOn(t, pool)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 30 {
				g, err := b.TryAcquire(context.Background(), request(fmt.Sprint("k", n%3), time.Minute))
				if err == nil {
					if err := g.Release(context.Background()); err != nil && !hasCode(err, "40001") {
						t.Error(i, err)
					}
					continue
				}
				assert.Nil(t, g)
				assert.False(t, isPermanent(err), err)
			}
		})
	}
	all.Wait()
}

// What is durable stays so: grants, renewals and extensions raise synchronous_commit
// from off, and nothing lowers it. A deferred trigger sees what holds at the commit.
func TestLease_commitsAreDurable(t *testing.T) {
	database := newDatabase(t)
	owner := connect(t, database)
	leaseOn(t, owner)
	exec(t, owner, "CREATE TABLE seen (setting text)")
	exec(t, owner, `CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`)
	exec(t, owner, `CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON locker_lease
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	for set, want := range map[string]string{"off": "on", "on": "on", "local": "local", "remote_write": "remote_write", "remote_apply": "remote_apply"} {
		pool := connect(t, withParam(t, database, "synchronous_commit", set), maxConns(1))
		b := leaseOn(t, pool)
		var g locker.Grant
		seen := func() string {
			s := value[string](t, owner, "SELECT string_agg(setting, ',') FROM seen")
			exec(t, owner, "DELETE FROM seen")
			return s
		}
		g = take(t, b, request(set, time.Minute))
		require.Equal(t, want, seen(), "a new row")
		_, err := g.Renew(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Equal(t, want, seen(), "renewal")
		_, err = b.Extend(t.Context(), g, time.Minute)
		require.NoError(t, err)
		require.Equal(t, want, seen(), "extension")
		b.RenewAll(t.Context(), []locker.Renewal{{Grant: g, TTL: time.Hour}}, func(_ int, _ locker.Lease, err error) { require.NoError(t, err) })
		require.Equal(t, want, seen(), "batch")
		require.NoError(t, g.Release(t.Context()))
		require.Equal(t, set, seen(), "release")
		take(t, b, request(set, time.Minute))
		require.Equal(t, want, seen(), "a row that was there")
		require.Equal(t, set, value[string](t, pool, "SHOW synchronous_commit"), "the caller's session is as it was")
	}
}

// A commit that fails, after the rows have come, is no grant.
func TestLease_aCommitThatFailsTakesNothing(t *testing.T) { // G7
	b := newLease(t)
	exec(t, b.pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$`)
	exec(t, b.pool, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON locker_lease
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	g, err := b.TryAcquire(t.Context(), request("k", time.Minute))
	require.Nil(t, g)
	require.ErrorContains(t, err, "not today")
	h, err := b.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Zero(t, h)
}

// The work under the lock uses the pool's only connection, and so do waiters and renewals.
func TestLease_aPoolOfOneConnectionIsEnough(t *testing.T) { // C64
	pool := connect(t, newDatabase(t), maxConns(1))
	l, err := NewLease(t.Context(), pool, &LeaseConfig{Create: true, Config: locker.Config{TTL: time.Second}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			err := locker.Do(ctx, l, "k", func(ctx context.Context, _ locker.Lock) error {
				for range 3 {
					if _, err := pool.Exec(ctx, "SELECT pg_sleep(0.01)"); err != nil {
						return err
					}
				}
				return nil
			})
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.NoError(t, l.Close(ctx))
}

// Nothing keeps a transaction open while a lock is held.
func TestLease_aHeldLockIsNoOpenTransaction(t *testing.T) { // C103
	b := newLease(t)
	take(t, b, request("k", time.Minute))
	require.Zero(t, value[int](t, b.pool, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state <> 'idle' OR backend_xmin IS NOT NULL)`))
	require.Zero(t, value[int](t, b.pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
}

// Of a try that was rolled back, nothing counts: not the token that its row showed.
func TestLease_aTryThatIsRolledBackIsForgotten(t *testing.T) { // G7
	b := newLease(t)
	exec(t, b.pool, "CREATE SEQUENCE commits")
	exec(t, b.pool, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('commits') = 1 THEN RAISE 'the other one was first' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$`)
	exec(t, b.pool, `CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON locker_lease
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`)
	// The second try comes too late: it writes nothing.
	exec(t, b.pool, `CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT is_called FROM commits) THEN RETURN NULL; END IF; RETURN NEW; END $$`)
	exec(t, b.pool, "CREATE TRIGGER skip BEFORE INSERT ON locker_lease FOR EACH ROW EXECUTE FUNCTION skip()")
	require.Equal(t, locker.HeldError{Key: "k"}, *requireHeld(t, b, "k"))
	require.True(t, value[bool](t, b.pool, "SELECT is_called FROM commits"), "a commit was refused")
}
