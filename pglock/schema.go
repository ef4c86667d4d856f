package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-locker/locker"
)

//go:embed schema_server.sql
var serverSQL string

//go:embed schema_object.sql
var objectSQL string

//go:embed schema_lease.sql
var leaseDDL string

//go:embed schema_row.sql
var rowDDL string

//go:embed schema_token.sql
var tokenDDL string

const (
	minServerVersion = 14_00_00
	maxNameBytes     = 63 // longer names are cut off by the server, and could meet
)

// querier is a pgxpool.Pool, or a pgx.Conn.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// object is something in the database that a backend needs.
type object struct {
	kind    string // "table" or "sequence"
	name    pgx.Identifier
	file    string // how to make it; $1 in it stands for the clock's microseconds
	plain   string // its name there
	columns string // of a table, as schema_object.sql shows them
	rights  []string
}

func leaseTable(name pgx.Identifier) object {
	return object{
		kind: "table", name: name, file: leaseDDL, plain: "locker_lease",
		columns: "expires_at timestamp with time zone, holder text, key text, token bigint",
		rights:  []string{"SELECT", "INSERT", "UPDATE"},
	}
}

func rowTable(name pgx.Identifier) object {
	return object{
		kind: "table", name: name, file: rowDDL, plain: "locker_row",
		columns: "key text",
		rights:  []string{"SELECT", "INSERT", "UPDATE"},
	}
}

func tokenSequence(name pgx.Identifier) object {
	return object{
		kind: "sequence", name: name, file: tokenDDL, plain: "locker_token",
		rights: []string{"USAGE"},
	}
}

// nameOr checks a name of the config; an empty one stands for usual.
func nameOr(field string, name pgx.Identifier, usual string) (pgx.Identifier, error) {
	if len(name) == 0 {
		return pgx.Identifier{usual}, nil
	}
	if len(name) > 2 {
		return nil, invalidf("%s %q has %d parts: it is a name, or a schema and a name", field, name, len(name))
	}
	for _, part := range name {
		switch {
		case part == "":
			return nil, invalidf("%s %q has an empty part", field, name)
		case len(part) > maxNameBytes:
			return nil, invalidf("%s has a part of %d bytes, at most %d are allowed", field, len(part), maxNameBytes)
		case !utf8.ValidString(part), strings.ContainsRune(part, 0):
			return nil, invalidf("%s %q is not valid UTF-8 without NUL", field, name)
		}
	}
	return name, nil
}

// prepare checks that the server and the objects are what a backend needs, and makes the
// objects that are missing if create is set. It blocks for one statement each, and ends
// with ctx. What waiting does not cure is marked as permanent; that the server is a
// standby may pass.
func prepare(ctx context.Context, db querier, create bool, objects ...object) error {
	var (
		version  int
		standby  bool
		encoding string
		micros   int64
		readOnly bool
	)
	row := db.QueryRow(ctx, text(serverSQL), pgx.QueryExecModeExec)
	if err := row.Scan(&version, &standby, &encoding, &micros, &readOnly); err != nil {
		return failed(err)
	}
	switch {
	case version < minServerVersion:
		return locker.Permanent(fmt.Errorf("pglock: the server's version is %d.%d, at least %d is needed",
			version/100_00, version%100_00, minServerVersion/100_00))
	case encoding != "UTF8" && encoding != "SQL_ASCII":
		return locker.Permanent(fmt.Errorf("pglock: client_encoding is %s: it has to be UTF8, or a key is not the same for all", encoding))
	case standby:
		return locker.NoEffect(errStandby)
	case readOnly:
		return locker.NoEffect(errors.New("pglock: this role's transactions only read (default_transaction_read_only): a lock is written"))
	}
	for _, o := range objects {
		ddl := statement(strings.ReplaceAll(o.file, "$1", strconv.FormatInt(micros, 10)), o.plain, o.name)
		if err := o.prepare(ctx, db, create, ddl); err != nil {
			return err
		}
	}
	return nil
}

func (o object) prepare(ctx context.Context, db querier, create bool, ddl string) error {
	err := o.check(ctx, db, ddl)
	if !errors.Is(err, errMissing) || !create {
		return err
	}
	_, err = db.Exec(ctx, ddl, pgx.QueryExecModeExec)
	// Somebody else may make it at the same time: then one of the system's own unique
	// indexes says so, or the name does.
	if err != nil && !hasCode(err, "23505", "42P07", "42710") {
		return failed(fmt.Errorf("pglock: creating the %s %s: %w", o.kind, o.name.Sanitize(), err))
	}
	// The server may have told this session that the name is taken before it tells it by
	// whom: its cache remembers for a moment that there was nobody.
	for range 50 {
		if err = o.check(ctx, db, ddl); !errors.Is(err, errMissing) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

var errMissing = errors.New("does not exist")

func (o object) check(ctx context.Context, db querier, ddl string) error {
	var (
		kind, persistence, columns string
		keyed, ordered             bool
		withheld                   []string
	)
	row := db.QueryRow(ctx, text(objectSQL), pgx.QueryExecModeExec, o.name.Sanitize(), o.rights)
	err := row.Scan(&kind, &persistence, &columns, &keyed, &ordered, &withheld)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return o.wrong("%w: set Create, locker_create=true in a URL, or have it made by: %s", errMissing, strings.Join(strings.Fields(ddl), " "))
	case err != nil:
		return failed(err)
	case o.kind == "sequence" && kind != "S", o.kind == "table" && kind != "r" && kind != "p":
		return o.wrong("is none")
	case persistence != "p":
		return o.wrong("does not outlive a crash: it is unlogged or temporary")
	case o.kind == "table" && (columns != o.columns || !keyed):
		return o.wrong("has another shape (%s): it has to be as by: %s", columns, strings.Join(strings.Fields(ddl), " "))
	case o.kind == "sequence" && !ordered:
		return o.wrong("does not count in order and in steps of 1024: it has to be as by: %s", ddl)
	case len(withheld) > 0:
		return o.wrong("needs a GRANT of %s to this role", strings.Join(withheld, ", "))
	}
	return nil
}

func (o object) wrong(format string, args ...any) error {
	return locker.Permanent(fmt.Errorf("pglock: the %s %s "+format, append([]any{o.kind, o.name.Sanitize()}, args...)...))
}
