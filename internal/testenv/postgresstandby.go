package testenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// StartPostgresStandby starts a standby of a server that StartPostgres started, with
// its settings, by streaming replication, and returns when it has replayed all that
// was written before. It answers queries and refuses writes. ctx bounds the start
// only. Stop has to be called. For a server that was given, or a standby that is still
// one, there is an error.
func StartPostgresStandby(ctx context.Context, of *Postgres) (*Postgres, error) {
	if of.dir == "" {
		return nil, ErrNotOurs
	}
	p, err := startPostgres(ctx, nil, func(p *Postgres) error {
		return p.runToEnd(ctx, p.programs.basebackup,
			"-D", dataName, "-d", of.url, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync")
	})
	if err != nil {
		return nil, err
	}
	if err := p.awaitReplay(ctx, of); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// awaitReplay waits until a standby streams and has replayed all that has been
// written to its primary.
func (p *Postgres) awaitReplay(ctx context.Context, of *Postgres) error {
	return until(ctx, "the standby", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		written, err := of.value(ctx, "SELECT pg_current_wal_lsn()")
		if err != nil {
			return err
		}
		return p.holds(ctx, "pg_last_wal_replay_lsn() >= "+quote(written)+" AND EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')")
	})
}

// Promote makes a standby a primary, and returns when it takes writes, or when ctx
// ends. The former primary is not told.
func (p *Postgres) Promote(ctx context.Context) error {
	if err := p.Exec(ctx, "SELECT pg_promote(false)"); err != nil {
		return err
	}
	return until(ctx, "the promotion", func(ctx context.Context) error { return p.holds(ctx, "NOT pg_is_in_recovery()") })
}

// holds is nil if an SQL condition is true.
func (p *Postgres) holds(ctx context.Context, condition string) error {
	value, err := p.value(ctx, "SELECT "+condition)
	if err == nil && value != "t" {
		err = fmt.Errorf("not true on %s: %s", filepath.Base(p.dir), condition)
	}
	return err
}
