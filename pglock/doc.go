// Package pglock keeps locks in PostgreSQL, by way of pgx, in three ways behind the same
// Locker: advisory locks, lease rows and row locks.
//
//	pool, err := pgxpool.New(ctx, "postgres://user:password@localhost:5432/app")
//	l, err := pglock.NewLease(ctx, pool, &pglock.LeaseConfig{Create: true, Listen: pool})
//	if err != nil {
//		return err
//	}
//	defer l.Close(ctx) // before pool
//
//	err = locker.Do(ctx, l, "invoice/42", func(ctx context.Context, k locker.Lock) error {
//		return pay(ctx, k.Token()) // ctx ends with the lock
//	})
//
// Or by configuration, with this package imported for its side effect:
//
//	l, err := locker.Open(ctx, "postgres://user:password@localhost:5432/app?locker_mode=lease&locker_create=true")
//
// # Which of the three
//
//	                 advisory (New)           lease rows (NewLease)    row locks (NewRow)
//	the lock is      pg_try_advisory_lock     a row with an end        SELECT FOR UPDATE
//	it ends with     the session              its lease                its transaction
//	after a crash    at once                  at the end of the lease  at once
//	connections      2 for all locks          the pool's, one          1 for each lock and
//	                                          statement at a time      each waited-for key
//	PgBouncer        session mode only        every mode               session mode only
//	writes           the sequence, at times   2 per lock, 1 per        1 per lock
//	                                          TTL/3 for all
//	lost together    all of a session         each for itself          each for itself
//	waiters          notified, and looked     notified, and by the     in the server's line
//	                 after every second       lease's end
//
// Lease rows are the one to begin with: they need nothing of a connection, can be read
// and repaired by plain SQL, and do not fall together. Advisory locks are faster, free a
// crashed holder's key without waiting for a lease, and take part with pg_advisory_lock of
// other programs. Row locks are what the others are compared with; [LockTx] is for callers
// who have a transaction already.
//
// # What is guaranteed
//
// On one server that keeps its data, which it does over a crash, at most one holder of a
// key; tokens that rise with every grant of it, over crashes too; and a key that becomes
// free if its holder is gone, paused or cut off for a TTL. A call whose answer got lost is
// undone or recognised. Nothing depends on the clients' clocks. Where a role has
// synchronous_commit off, grants and renewals raise it for themselves: a crash would take
// them back.
//
// # What is not
//
// Advisory and row locks end with their session, and so with the server: a holder who is
// paused or cut off at that moment does not hear of it, and believes in his lock until
// its Deadline. Therefore nothing is granted for a time after a start of the server,
// Config.RestartGrace, unless the sequence of the tokens is younger still. pg_terminate_backend, a failover, and a connection of which only
// the server hears that it has ended are not covered by that.
//
// A failover to a standby that has not received the last transactions, which asynchronous
// replication allows, forgets leases and may repeat tokens; session locks end with the
// old server. Set synchronous_standby_names where that would do damage. A standby is
// refused: its locks are not the primary's.
//
// Leases are counted by the server's clock: one that is set forward lets keys go early.
// A holder that is paused past its lease goes on writing when it wakes up, until it looks:
// let the resource check Lock.Token and refuse a smaller one than the largest it has seen.
//
// # Advisory locks: the session
//
// All locks of one TTL stand on one session of the server (Config.Sessions spreads them
// over more), whose connection is not the pool's. That is the blast radius: if the session
// ends, by a restart, pg_terminate_backend or a lost connection, all of its locks are
// lost together. It is noticed at once, since somebody always reads, and never mended by
// a new connection. A session that leaves open whether it has given a lock back takes no
// new ones, and is ended when its last live lock is gone; if its connection ends without
// the server's word, the server is told to end the session, over another one.
//
// The server ends a session that it has not heard of for a TTL (idle_session_timeout),
// also if an answer of its own finds nobody for as long (tcp_keepalives_*,
// tcp_user_timeout). So a lock has the TTL of its session: Extend takes no other, and a
// Locker has locks of at most four different TTLs at a time. What does not end with the
// session, a lock without renewal or with WithMaxHold, is given back by the Locker, again
// and again until the server has answered.
//
// A key is a number there ([Key]), so two keys may be one lock, with a probability that
// [Key] states. Others see the session and not the owner: HeldError.Holder is
// "pid 4711 (application [locker 30s])", the application_name of the pool and the TTL.
// ForceRelease ends the session.
//
// Waiters take no connection. One session for all of them listens, and shows the server by a
// shared advisory lock in the space of two integers which numbers are waited for; a
// release notifies only then. Every second it looks whether one of them is free, because
// a holder that crashed says nothing: takeover takes a second then. Config.BlockedWaiters
// lets waiters wait in the server's own line instead, at the price that it states.
//
// The session cannot come from a pooler in transaction or statement mode: New finds that
// out and refuses it.
//
// # Lease rows: the table
//
// Create makes it, or this does:
//
//	CREATE TABLE locker_lease (
//	  key        text COLLATE "C" PRIMARY KEY,
//	  holder     text,                 -- the owner, or "owner label"; NULL if it is free
//	  token      bigint NOT NULL,
//	  expires_at timestamptz NOT NULL
//	) WITH (fillfactor = 70)
//
// A key is held while holder is there and expires_at is in the future, by the server's
// clock. Plain SQL takes part by the same rule. Grants take max(token+1, the clock in µs),
// so tokens rise after a row was removed too: rows that are free and were last taken more
// than a day ago are, a few at a time. Each grant and each release is a row version, so a key that changes hands a thousand
// times a second gives autovacuum something to do.
//
// # Row locks: the transaction
//
// A held row lock is a transaction that stays open, "idle in transaction": VACUUM does not
// remove what was deleted since, and alarms go off if it is held for long. It takes a
// connection of its own, and so does every key that is waited for; up to four idle ones are
// kept, for a minute. The row stays when the lock is gone; any row may be deleted at any time. CREATE TABLE locker_row (key text COLLATE
// "C" PRIMARY KEY).
//
// # Tokens
//
// Advisory and row locks take them from a sequence: CREATE SEQUENCE locker_token AS bigint
// INCREMENT BY 1024 START WITH (microseconds since 1970) CACHE 1. A role that cannot have
// one uses Config.ClockToken, on all Lockers alike: tokens by the server's clock then, which
// do not rise if it is set back.
//
// # Pools and poolers
//
// Advisory and row locks make connections of their own with the settings of the pool and its
// BeforeConnect, but without AfterConnect, and leave its own alone, except to look at locks
// for operators.
// Lease rows use the pool for one statement at a time, and never hold a connection while
// they wait. No startup parameters, prepared statements or session settings stand in
// PgBouncer's way. Behind it, wake-ups take a way to the server itself: LeaseConfig.Listen,
// or locker_listen=host:port in the URL. Let its server_login_retry be short: the default
// keeps clients waiting for 15 s after the server is back.
//
// # Errors
//
// Without the table, the sequence or the right to it, New says so, with the statement that
// helps. Outages, failovers, serialization failures, time-outs and full tables are waited
// out by Acquire; refused rights, missing objects and wrong passwords end it at once. The
// server's error is a *pgconn.PgError, by errors.As. The lock table of the server
// (max_locks_per_transaction) is shared by all: Config.MaxLocks keeps clear of its end.
//
// # URLs
//
// postgres:// or postgresql://, with one host or several, and the parameters of pgxpool.
// Ours are ttl, locker_mode (advisory, lease or row; it has to be there), locker_create=true,
//
//	advisory  locker_namespace, locker_sequence, locker_token=clock, locker_sessions,
//	          locker_max_locks, locker_blocked_waiters=true, locker_restart_grace=30s
//	lease     locker_table, locker_listen=host:port
//	row       locker_table, locker_sequence, locker_token=clock, locker_restart_grace=30s
//
// Names of tables and sequences may have a schema: app.locks. Open makes a few requests,
// and Locker.Close closes the pool that it has made.
package pglock
