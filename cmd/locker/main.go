// Locker runs a command under a distributed lock, shows who holds which key, and tests
// a deployment against the contract of package locker.
//
//	locker run [-n | -w D] [-E CODE] [--ttl D] [--grace D] [--label TEXT] KEY -- COMMAND [ARGUMENT...]
//	locker who KEY
//	locker ls [--all]
//	locker release --force [--session] KEY
//	locker conformance [-run REGEXP] [-faults] [-ttl D] [-json FILE] [-junit FILE] [-list] [URL]
//	locker help [COMMAND]
//	locker --version
//
// Where the locks are is said by --url, or else by LOCKER_URL in the environment, which
// other users of the machine cannot read: redis://, rediss://, redis-cluster://,
// redis-sentinel://, postgres:// or etcd://, as the backends' packages document them. There is
// no default.
// mem:// is for trying things out: each locker process has a memory of its own, so it
// keeps no other one from a key. run warns of that.
//
// D is a number of seconds, or a duration such as 500ms or 1m30s. Long flags take one
// dash or two, and stand before KEY. A "--" ends the flags: locker who -- -key.
//
// Messages go to standard error, one line each: what is wrong, and a warning if the
// store is set up so that it may break a promise. --verbose (-v) adds a line for
// everything that happens to a lock. No message shows a URL's user or password. Text
// that comes from the store is quoted where it could move a terminal's cursor.
//
// # run
//
// run takes KEY, runs COMMAND, and releases KEY when COMMAND has ended, in whatever
// way. It has the habits of flock(1): it waits for the key, not at all with -n, at most
// D with -w, and says nothing if the key is held.
// COMMAND is looked up before the lock is asked for. It has the standard input, output
// and error of locker, and in its environment LOCKER_KEY, LOCKER_OWNER and LOCKER_TOKEN,
// the fencing token. The "--" before COMMAND is required, so that a KEY from a shell
// variable that is not set is an error, and not the name of the command.
//
// Without -w, and with -n, a store that refuses the first request is an error at once,
// and one that is silent is an error after 5 s; an outage during the wait is waited out.
// With -w both are waited out, for as long as D. A signal ends the wait, and nothing
// stays taken: a request without an answer may have got the lock all the same, so it is
// undone, for which a silent store is given another 5 s at most. The error comes first.
//
// The lock is renewed while COMMAND runs. COMMAND has to be gone before the store can
// give KEY to somebody else, so a lease that cannot be renewed ends it --grace (a third
// of the TTL, which is 30s unless --ttl or the URL says otherwise) before the lock's
// deadline: SIGTERM then, and SIGKILL at the deadline, even if the store is back by
// then. An outage of a quarter of the TTL therefore passes unnoticed. A lock
// that was taken away (released by force, deleted, evicted) is lost at once, as the
// next renewal finds out, or a push: SIGTERM, and SIGKILL after the grace. --grace 0s is
// SIGKILL at once. Either way the exit code is 75, whatever COMMAND's is.
//
// Without a controlling terminal (cron, systemd, CI) COMMAND leads a process group of
// its own. INT, TERM, HUP and QUIT are passed on to the group, and so is the end of a
// lost lock: what COMMAND has started ends too, and what is left of it when COMMAND has
// ended is killed. USR1 and USR2 are passed on to COMMAND alone. With a terminal
// COMMAND stays in locker's process group, so that job control works, and signals go to
// COMMAND alone; INT and QUIT are not passed on while that group is in the foreground,
// because the terminal has sent them to COMMAND too. If SIGINT ended COMMAND there, it
// ends locker too, so that a shell stops its script.
//
// On Linux COMMAND is killed when locker is killed. Nobody is left to release the key
// then: it is free at the end of its TTL.
//
// What it cannot do: the children of COMMAND outlive a locker that was killed, and, in
// a terminal, a lost lock. A COMMAND of another user (sudo) cannot be ended from outside:
// run locker inside of it. A locker that is stopped (SIGSTOP, Ctrl-Z) does not renew,
// and cannot end COMMAND until it goes on; Ctrl-Z stops both. What COMMAND leaves in
// the background at its normal end runs on without the lock. On systems other than
// Linux COMMAND outlives a killed locker, and on Windows a lost lock kills it without
// warning. Whatever must not be written without the lock has to check LOCKER_TOKEN.
//
// Exit codes of run:
//
//	COMMAND's own, if it ran
//	1       KEY is held; -E CODE changes it
//	64      the call is wrong: a flag, a key, a URL
//	69      the store cannot be reached, or refuses
//	75      the lock was lost, or about to be, while COMMAND ran; or before it could
//	        run, since the lease was over when the store's answer came: a longer --ttl
//	        helps
//	126     COMMAND cannot be run
//	127     COMMAND is not there
//	128+n   signal n ended COMMAND, or the wait
//
// A COMMAND that ends with one of these codes by itself looks like locker. For the 1 of
// a held key -E sets another one; locker explains 64, 69, 75, 126 and 127 on standard
// error, where COMMAND's own code adds nothing.
//
// # who, ls, release
//
// who shows the holder of KEY, its label, what its lease has left, and its token; "-"
// means that the store does not show it (Redis shows no token). It is 1 if KEY is free.
// The label is that of --label, by default the user, the host and the process id of
// locker.
//
// ls lists the held keys, one line each: key, remaining time, token, holder and label,
// separated by tabs; "-" stands for what is not known. It is not a snapshot. On Redis a
// lock cannot be told from other strings by anything but its name, so without a prefix
// in the URL ls wants --all, and lists the others too. Postgres' advisory locks have
// no names: ls shows the number of each, of other applications too, which pglock.Key
// tells of a key, and who takes a KEY as everywhere.
//
// release --force frees KEY if its holder is still the one that it looked up and says it
// broke. That holder is told by push or at its next renewal, and may be at work until
// then. It is 1 if KEY is free, and 2 if the holder changed meanwhile; nothing is done
// then. All three are 64 and 69 as run is.
//
// Where the holder is a session of the store, as with Postgres' advisory locks, who shows
// that ("pid 4711 (app [locker 30s])"), and no label. It can only be ended as a whole, and
// all its locks fall. So release --force is 64 there, and says how many there are;
// with --session it ends the session, and says how many fell: those that ls showed just
// before. Elsewhere --session is 64.
//
// # conformance
//
// conformance runs the suite of package conformance on a live deployment: on keys with
// random names, which are gone afterwards (what keeps their tokens stays: Redis' counter, a
// sequence of Postgres, or the rows of its leases, for a day); it needs no
// access but that of a user of locks, and disturbs nobody. It starts copies of itself,
// to kill and to stop them. -faults adds the cases on broken networks: the suite breaks
// its own connections, and no others. -run chooses cases by their id, -list prints them,
// -ttl is the lease that they work with, 1s by default and at least 100ms: several
// answers of the store have to fit into it, so a slow network needs a longer one, and
// with a shorter one slow answers can look like broken rules. A case that
// needs what the command was not given, or what a user of locks cannot do (break the
// server, list its names), is skipped, and says which; -list marks both.
//
// The outcome of each case is printed as it comes. -json writes a report with a
// version, which changes when a field goes or means something else; -junit writes one
// that CI servers read, in which a SHOULD that failed counts as skipped. FILE may be
// "-", for standard output; the text goes to standard error then.
//
// Exit codes of conformance:
//
//	0    every MUST that was tested holds
//	1    one is broken
//	2    nothing can be said: the store cannot be reached, every chosen case was
//	     skipped, one could not be judged, or a signal ended the run (what ran so far
//	     is reported)
//	64   the call is wrong
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // what the driver logs, errors and events tell
	a := newApp(os.Stdout, os.Stderr)
	code := a.run(context.Background(), os.Args)
	if a.interrupted {
		dieOfInterrupt() // to a shell the code is the same, but it stops its script only then
	}
	os.Exit(code)
}
