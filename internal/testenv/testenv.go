// Package testenv runs real servers for tests and for the commands that try locks
// out: each one private, on a port and in a directory of its own, gone when it is
// stopped or when this process ends.
//
// Of Redis there is one server, StartRedis, a replica, StartReplica, and what fails
// over: StartSentinel and StartCluster. Each server in them is a *Redis, which can be
// paused, killed and restarted by itself.
//
// StartPostgres, StartPostgresStandby and StartPgBouncer do the same for Postgres, and
// StartEtcd and StartEtcdCluster for etcd, of whose members one can also be cut off from
// the others. StartNamespace is a network from which a client can vanish.
//
// It does not import testing. A test needs three lines:
//
//	redis, err := testenv.StartRedis(t.Context(), nil)
//	if testenv.Skippable(err) { t.Skip(err) }
//	require.NoError(t, err)
//
// A server that is not installed is a reason to skip, but not when
// LOCKER_TEST_REQUIRE is 1, as make test sets it: there a missing server fails. The
// only other one is a network namespace that takes root on Linux.
//
// On Linux a server dies with the process that started it, however that ends.
// Elsewhere, and for the directory everywhere, only Stop cleans up; and so for 56 bytes
// of shared memory of a Postgres.
package testenv

import (
	"errors"
	"os"
)

var (
	// ErrNotInstalled: the server's program was not found. Returned by the Start
	// functions.
	ErrNotInstalled = errors.New("testenv: server is not installed, run make deps")

	// ErrNoNamespace: this system, or the rights of this process, do not allow for a
	// network namespace. Returned by StartNamespace.
	ErrNoNamespace = errors.New("testenv: no network namespace")

	// ErrNotOurs: the server was named by an environment variable, and what was
	// asked needs one that this package started. Returned by the methods that
	// pause, end or restart a server.
	ErrNotOurs = errors.New("testenv: the server was given, it is not ours to pause, end or restart")

	// ErrNotRunning: the server was stopped or killed. Returned by the methods
	// that need a live one.
	ErrNotRunning = errors.New("testenv: the server is not running")
)

// Required reports whether every server has to be there: LOCKER_TEST_REQUIRE is 1.
func Required() bool { return os.Getenv("LOCKER_TEST_REQUIRE") == "1" }

// Skippable reports whether a test that got err may be skipped: the server is not
// installed, and that is allowed, or there is no network namespace. The latter is no
// reason for root on Linux where everything has to be there.
func Skippable(err error) bool {
	return errors.Is(err, ErrNotInstalled) && !Required() ||
		errors.Is(err, ErrNoNamespace) && !(Required() && mayHaveNamespace())
}
