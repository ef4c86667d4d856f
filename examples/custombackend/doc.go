// Package custombackend is a backend of your own, as short as one can be and still
// pass the conformance suite: locks as files in a directory, for the processes of one
// machine.
//
//	l, err := custombackend.New(ctx, "/var/lib/app/locks", nil)
//
// It is there to be read and copied. backend.go is the contract, method by method; the
// rules that its comments tell of are those of locker.Backend and locker.Grant.
// optional.go is what it could do without.
// directory.go is the store: where "atomically" comes from, and the fencing token.
// clock_linux.go and clock_darwin.go say when a lease is over. The suite runs in
// conformance_test.go, on a Harness of a few lines.
//
// # The store
//
// A held key is a file, named after the key's hash. It says whose it is and when the
// lease ends, and cat shows it. One more file, guard, holds the one token counter, and
// is locked with flock(2) for the instant in which a lock file is read and written.
// The kernel takes that lock back when its process dies, however it dies: a process
// that is killed half-way leaves nothing stuck.
//
// # What is guaranteed
//
// All of package locker's contract, among the processes of one machine that use one
// directory. A holder that was killed blocks the others until its lease ends, and a
// restart of the machine ends all leases. The wall clock may jump: leases run on the
// machine's own clock, which does not, and which counts its sleep.
//
// # What is not
//
//   - The directory has to be on a disk of this machine. To a second machine, on NFS,
//     say, all locks of the first one look like those before a restart: it takes them.
//     Processes in Linux time namespaces of their own have other clocks, too.
//   - Who may write to the directory can break every lock in it. New makes it for one
//     user; do not put it where something removes old files, as in /tmp.
//   - Tokens rise by the counter. If that is lost, with the directory or with the
//     machine's power, they go on from the wall clock, and rise if it was not set back
//     by more than the time between the grants.
//   - A process that is stopped (SIGSTOP) within the instant in which it has the guard
//     locked holds up every other one until it goes on or is killed. Nobody gets a lock
//     twice: calls end with their contexts, and holders lose their locks in time.
//   - Waiters look again after a growing pause of up to a second: files push nothing.
//   - A lease that ran out leaves its file behind, until the key is taken again or
//     somebody calls New.
//   - A disk that fails within a write can end a lock, of which the holder hears at the
//     next renewal only.
//
// Linux and macOS; run on Linux only. Windows has no flock(2), and no clock for all
// processes that goes by that name: there the package is empty.
package custombackend
