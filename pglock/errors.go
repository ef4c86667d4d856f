package pglock

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/go-locker/locker"
)

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{locker.ErrInvalid}, args...)...)
}

// permanentClasses are the first two digits of the SQLSTATEs that waiting does not cure.
var permanentClasses = []string{
	"0A", // the server cannot do it at all: another product, another version
	"22", // data: a key that the database's encoding lacks, a token past its type
	"23", // constraints: a table that is not ours, or that somebody has added to
	"28", // authorization: a wrong password, no line in pg_hba.conf
	"3D", // no such database
	"3F", // no such schema
	"42", // names and rights: a missing table, column or privilege, other types
}

// isPermanent reports whether waiting does not cure err. What is not listed passes:
//
//	08  connections, and whatever else PgBouncer has to say
//	25  a read-only server: a standby, or a failover under way
//	40  serialization failures and deadlocks: the other one got through
//	53  the server's resources: connections, memory, disk
//	54  limits: a full queue of notifications, which somebody will read
//	55  the state of objects: a lock time-out
//	57  an operator's doing: shutdown, start, a cancelled or timed-out statement
//	58, XX, F0  the server's own troubles
//	P0  a trigger's refusal, whose reasons are not known
//
// and so does all trouble with connections that has no SQLSTATE.
func isPermanent(err error) bool {
	if errors.Is(err, puddle.ErrClosedPool) {
		return true // a closed pool does not open again
	}
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted {
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && len(pg.Code) == 5 && slices.Contains(permanentClasses, pg.Code[:2])
}

// unsent marks an error from before there was a connection to send anything on: from the
// pool, or from the server's refusal of a connection, which is as fatal as the end of one.
type unsent struct{ error }

func (e unsent) Unwrap() error     { return e.error }
func (e unsent) SafeToRetry() bool { return true }

// mayHaveRun reports whether the server may have committed what failed with err. In doubt
// it may.
func mayHaveRun(err error) bool {
	if pgconn.SafeToRetry(err) {
		return false
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return true
	}
	switch pg.Code {
	case "40003", "08007": // these say that they do not know
		return true
	}
	// What ends the session (FATAL) may do so when all is done, but for the answer: a
	// commit that waits for its standbys does. PgBouncer leaves the V field out.
	return cmp.Or(pg.SeverityUnlocalized, pg.Severity) != "ERROR"
}

// failed is how every error of the driver leaves a backend: marked if waiting does not
// cure it, or if the server certainly did nothing.
func failed(err error) error {
	err = nameless(err)
	switch {
	case err == nil:
		return nil
	case isPermanent(err):
		return locker.Permanent(err)
	case !mayHaveRun(err):
		return locker.NoEffect(err)
	}
	return err
}

// hasCode reports whether err is the server's, with one of these SQLSTATEs.
func hasCode(err error, codes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(codes, pg.Code)
}

// connectError is a pgconn.ConnectError whose text does not show the user.
type connectError struct {
	text string
	err  error
}

func (e *connectError) Error() string { return e.text }
func (e *connectError) Unwrap() error { return e.err }

// nameless takes the user's name out of the text of an error: it may have come in a URL,
// and what comes in there beside the host is not shown.
func nameless(err error) error {
	refused, isRefused := errors.AsType[*pgconn.PgError](err)
	connect, isConnect := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case isRefused && strings.HasPrefix(refused.Code, "28"):
		return &connectError{"pglock: the server does not let this user in with this password (SQLSTATE " + refused.Code + ")", err}
	case isConnect:
		return &connectError{"pglock: no connection: " + strings.ReplaceAll(connect.Unwrap().Error(), "\n", "; "), err}
	}
	return err
}
