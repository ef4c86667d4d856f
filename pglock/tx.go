package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/go-locker/locker"
)

// LockTx takes the advisory lock of a key for the rest of a transaction, and waits until it
// is free. It ends with the transaction, by commit or rollback, and with nothing else: there
// is no lease, no token and nothing to release. It excludes the Lockers of New with that
// namespace, and other transactions; in the same session it does not exclude itself. It
// works through PgBouncer in transaction mode.
//
// Lockers are not told when the transaction ends: those who wait find out within a second.
//
// The end of ctx ends the wait, and with it, as pgx does it, tx's connection. In a failed
// transaction it is an error. A transaction that waits keeps its snapshot, and others, such as CREATE
// INDEX CONCURRENTLY, wait for it. A bad namespace or key is locker.ErrInvalid, before
// anything is sent.
func LockTx(ctx context.Context, tx pgx.Tx, namespace, key string) error {
	if err := validTx(tx, namespace, key); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", pgx.QueryExecModeExec, Key(namespace, key))
	return failed(err)
}

// TryLockTx is LockTx without the wait: if somebody else has the lock, it is a
// *locker.HeldError, which does not say who, and the transaction can go on.
func TryLockTx(ctx context.Context, tx pgx.Tx, namespace, key string) error {
	if err := validTx(tx, namespace, key); err != nil {
		return err
	}
	var got bool
	row := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1::bigint)", pgx.QueryExecModeExec, Key(namespace, key))
	if err := row.Scan(&got); err != nil {
		return failed(err)
	}
	if !got {
		return &locker.HeldError{Key: key}
	}
	return nil
}

func validTx(tx pgx.Tx, namespace, key string) error {
	if tx == nil {
		return invalidf("no transaction")
	}
	if err := validNamespace(namespace); err != nil {
		return err
	}
	return locker.ValidKey(key)
}
