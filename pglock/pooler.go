package pglock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-locker/locker"
)

var errPooler = errors.New("pglock: behind a pooler in transaction or statement mode, where the statements of one client " +
	"come to different sessions: advisory and row locks would be held by nobody, or by somebody else. " +
	"Give New a pool that reaches the server directly, or use NewLease, locker_mode=lease in a URL, which works there")

const (
	// probes are how often the probe tries to get another client into a session, or another
	// session for its own client. Those who use the pooler at the same time may come in
	// between, but not every time.
	probes = 10

	// probeWait is how long the probe waits for a second session.
	probeWait = time.Second
)

const whichSession = "SELECT pg_backend_pid()"

// probe finds out what kind of pooler is in front of the server. One that keeps a session
// for its client gives it to nobody else: not while another client's transaction is
// open, which needs one too, and not by turns. conn's session was pid a moment ago.
func (c *connector) probe(ctx context.Context, conn *pgconn.PgConn, pid string) error {
	if pid == strconv.FormatUint(uint64(conn.PID()), 10) {
		return nil // else somebody between us and the server has told us a number of his own
	}
	other, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer other.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only looked at
	for range probes {
		if err := kept(ctx, conn, pid); err != nil {
			return err
		}
		// It stays open until conn has asked again.
		found, err := beginElsewhere(ctx, conn, other, pid)
		switch {
		case err != nil:
			return err
		case found == "":
			return nil // there is one session for conn, and none for the other client
		case found == pid:
			return locker.Permanent(errPooler)
		}
		if err := kept(ctx, conn, pid); err != nil {
			return err
		}
		if _, err := other.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

// kept is nil if the session of conn is still the one it was.
func kept(ctx context.Context, conn *pgconn.PgConn, pid string) error {
	row, err := ask(ctx, conn, whichSession)
	if err == nil && row[0] != pid {
		err = locker.Permanent(errPooler)
	}
	return err
}

// beginElsewhere begins a transaction for the other client, and returns its session. It is
// empty if there is none to be had although conn has one, which is conn's own then: a
// pooler that shares it gives it to who has waited before conn asked.
func beginElsewhere(ctx context.Context, conn, other *pgconn.PgConn, pid string) (string, error) {
	beginning, cancel := context.WithCancel(ctx)
	var row []string
	var refusal error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		row, refusal = ask(beginning, other, "BEGIN; "+whichSession)
	}()
	defer func() {
		cancel()
		<-answered
	}()
	wait := time.NewTimer(probeWait)
	defer wait.Stop()
	for range 2 {
		select {
		case <-answered:
			refused := (*pgconn.PgError)(nil)
			switch {
			case refusal == nil:
				return row[0], nil
			case errors.As(refusal, &refused) && !strings.HasPrefix(refused.Code, "53") && !strings.HasPrefix(refused.Code, "57"):
				// In statement mode there are no transactions.
				return "", locker.Permanent(fmt.Errorf("%w (its answer to BEGIN: %w)", errPooler, refused))
			}
			return "", refusal
		case <-wait.C:
		}
		if err := kept(ctx, conn, pid); err != nil {
			return "", err
		}
		wait.Reset(probeWait / 10)
	}
	return "", nil
}
