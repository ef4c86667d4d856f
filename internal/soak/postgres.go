package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/internal/testenv"
)

// postgresModes are the kinds of locks on a Postgres.
var postgresModes = []string{"advisory", "lease", "row"}

// mode is what a URL says to have that kind of locks, and to make what they need. No lock of
// ours lives for longer than ttl, so those of a server that has ended are over then.
func mode(name string) string {
	query := "&locker_mode=" + name + "&locker_create=true"
	if name != "lease" {
		query += "&locker_restart_grace=" + ttl.String()
	}
	return query
}

func (s *soak) partsOnPostgres() []part {
	var parts []part
	for _, name := range postgresModes {
		parts = append(parts,
			part{name: "histories/postgres-" + name, run: func(ctx context.Context) error {
				return withPostgres(ctx, mode(name), func(h conformance.Harness) error { return s.histories(ctx, h, 50) })
			}},
			part{name: "trials/postgres-" + name, run: func(ctx context.Context) error {
				return withPostgres(ctx, mode(name), func(h conformance.Harness) error { return s.repeat(ctx, h, faultsOfOneServer) })
			}},
			part{name: "trials/postgres-vanished-" + name, run: func(ctx context.Context) error { return s.trialsOfVanishing(ctx, mode(name)) }},
			part{name: "trials/postgres-tokens-" + name, run: func(ctx context.Context) error { return s.trialsOfTokens(ctx, mode(name)) }},
		)
	}
	return append(parts,
		part{name: "histories/postgres-bouncer", run: func(ctx context.Context) error {
			return s.withPgBouncer(ctx, func(h conformance.Harness) error { return s.histories(ctx, h, 50) })
		}},
		part{name: "trials/postgres-bouncer", run: func(ctx context.Context) error {
			return s.withPgBouncer(ctx, func(h conformance.Harness) error { return s.repeat(ctx, h, faultsOfOneServer) })
		}},
	)
}

func withPostgres(ctx context.Context, query string, run func(h conformance.Harness) error) error {
	srv, err := testenv.StartPostgres(ctx, nil)
	if err != nil {
		return err
	}
	h := harness(srv.URL() + query)
	h.Server = breaking(srv.InCharge(), false)
	return errors.Join(run(h), srv.Stop())
}

// withPgBouncer has the leases behind a PgBouncer that gives a connection to a
// transaction. Wake-ups take the server's own address.
func (s *soak) withPgBouncer(ctx context.Context, run func(h conformance.Harness) error) error {
	srv, err := testenv.StartPostgres(ctx, nil)
	if err != nil {
		return err
	}
	pooler, err := testenv.StartPgBouncer(ctx, srv, &testenv.PgBouncerConfig{Mode: "transaction"})
	if err != nil {
		return errors.Join(err, srv.Stop())
	}
	h := harness(pooler.URL() + mode("lease") + "&locker_listen=" + srv.Addr())
	broken := srv.InCharge()
	h.Server = breaking(broken, false)
	h.Server.Restart = func(ctx context.Context) error {
		if err := broken.Restart(ctx); err != nil {
			return err
		}
		return pooler.AwaitServer(ctx)
	}
	revived := s.revive(ctx, pooler)
	err = run(h)
	return errors.Join(err, revived(), pooler.Stop(), srv.Stop())
}

// revive starts a PgBouncer again whenever it is gone, as a system does with a service,
// until it is called back: versions before 1.21 crash when a request is cancelled while
// the server goes away.
func (s *soak) revive(ctx context.Context, pooler *testenv.PgBouncer) (done func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended, crashes := make(chan error, 1), 0
	go func() {
		look := time.NewTicker(100 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-look.C:
			}
			if pooler.PID() != 0 {
				continue
			}
			crashes++
			if err := pooler.Restart(ctx); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
	}()
	return func() error {
		cancel()
		err := <-ended
		if crashes > 0 {
			fmt.Fprintf(s.out, "   PgBouncer crashed and was started again: %d times\n", crashes)
		}
		return err
	}
}

// trialsOfVanishing measures how long the key of a holder whose machine vanished is not
// free. It takes root on Linux.
func (s *soak) trialsOfVanishing(ctx context.Context, query string) (err error) {
	network, err := testenv.StartNamespace(ctx)
	if errors.Is(err, testenv.ErrNoNamespace) {
		fmt.Fprintln(s.out, "   left out:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Stop()) }()
	srv, err := testenv.StartPostgres(ctx, &testenv.PostgresConfig{Listen: []netip.Prefix{network.Host()}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Stop()) }()
	far, err := srv.At(srv.URL()+query, network.Host().Addr())
	if err != nil {
		return err
	}
	var free []time.Duration
	for range s.trials {
		took, err := vanished(ctx, network, far, srv.URL()+query)
		if err != nil {
			return err
		}
		free = append(free, took)
	}
	s.print("holder's machine vanished, waiter has the key", free)
	return nil
}

// vanished is how long a waiter waits after the machine of the holder is gone.
func vanished(ctx context.Context, network *testenv.Namespace, far, near string) (time.Duration, error) {
	config := locker.Config{TTL: ttl}
	holder, err := locker.OpenWith(ctx, far, &locker.OpenConfig{Config: config, Dial: network.Dial})
	if err != nil {
		return 0, err
	}
	defer closeNow(ctx, holder)
	waiter, err := locker.OpenWith(ctx, near, &locker.OpenConfig{Config: config})
	if err != nil {
		return 0, err
	}
	defer closeNow(ctx, waiter)
	if _, err := holder.TryAcquire(ctx, "vanished"); err != nil {
		return 0, err
	}
	if err := network.Cut(ctx); err != nil {
		return 0, err
	}
	cut := time.Now()
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	k, err := waiter.Acquire(bounded, "vanished")
	took := time.Since(cut)
	if err == nil {
		err = k.Release(ctx)
	}
	return took, errors.Join(err, network.Mend(ctx))
}

// trialsOfTokens kills the server right after grants, also for a role that does not wait for
// the disk, and with a server that writes to it late: the tokens of one key rise over that.
func (s *soak) trialsOfTokens(ctx context.Context, query string) (err error) {
	srv, err := testenv.StartPostgres(ctx, &testenv.PostgresConfig{Settings: []string{"wal_writer_delay = '10s'"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Stop()) }()
	for _, commit := range []string{"on", "off"} {
		role := "commit_" + commit
		url, err := srv.AddRole(ctx, srv.URL(), role, "secret", "SUPERUSER")
		if err != nil {
			return err
		}
		if err := srv.Exec(ctx, "ALTER ROLE "+role+" SET synchronous_commit = "+commit); err != nil {
			return err
		}
		took, rose, err := crashes(ctx, srv, url+query, s.trials)
		if err != nil {
			return err
		}
		s.print("server killed, synchronous_commit "+commit+", the next grant", took)
		fmt.Fprintf(s.out, "   %d of %d tokens are larger than the one before\n", rose, s.trials)
		s.broken = s.broken || rose < s.trials
	}
	return nil
}

// crashes is how long it takes from each kill of the server to the next grant, and how many of
// those have a larger token.
func crashes(ctx context.Context, srv *testenv.Postgres, url string, trials int) (took []time.Duration, rose int, err error) {
	l, err := locker.OpenWith(ctx, url, &locker.OpenConfig{Config: locker.Config{TTL: ttl}})
	if err != nil {
		return nil, 0, err
	}
	defer closeNow(ctx, l)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(trials)*time.Minute)
	defer cancel()
	var before uint64
	for i := range trials + 1 {
		var killed time.Time
		if i > 0 {
			killed = time.Now()
			if err := errors.Join(srv.Kill(), srv.Restart(ctx)); err != nil {
				return nil, 0, err
			}
		}
		k, err := l.Acquire(ctx, "tokens")
		if err != nil {
			return nil, 0, err
		}
		if i > 0 {
			took = append(took, time.Since(killed))
			if k.Token() > before {
				rose++
			}
		}
		before = k.Token()
	}
	return took, rose, nil
}
