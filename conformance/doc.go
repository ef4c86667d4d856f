// Package conformance is the public test suite for distributed locks: it judges any
// locker.Locker, be it locker.New around a Backend, an implementation of its own, or a
// live deployment. Run it under go test:
//
//	func TestConformance(t *testing.T) {
//		store := mylock.NewStore()
//		conformance.Run(t, conformance.Harness{
//			Open: func(ctx context.Context) (locker.Locker, error) {
//				return mylock.New(store) // as another process would
//			},
//		})
//	}
//
// or in a program, with [Check], which returns a [Report].
//
// A [Harness] offers what a case may need, and everything but Open is optional. Each
// part makes more cases runnable:
//
//	Names     the names in the store            what is left behind
//	Requests  a count of requests               what waiting and renewing cost
//	Env       environment of child processes    crashes, and processes that are stopped
//	OpenVia   Open over connections of ours     networks that lose, delay, cut and refuse
//	Server    how to break the store's server   servers that freeze, crash and come back
//
// # What is judged
//
// [Cases] is one table. Each case has a stable id ("R2/cancelled-context"), the
// sentence that it stands for, and a level; the page docs/contract.md lists them all.
// A case opens its own Lockers, uses keys that nobody else uses, and can be run alone.
// A failure tells what was seen, what was wanted, the rule, and the line. A case that
// does not come to an end is ended, and all goroutines are shown. One that needs
// something the Locker does not declare, or the Harness does not offer, is skipped, and
// counted.
//
// Faults are real ones. What OpenVia is given dials through package faultnet, which
// breaks connections to a real server in every way that a client can see; processes get
// SIGSTOP and SIGKILL; what happens to the server is up to the Harness.
//
// Safety is judged by what a Lock says, exactly. Bounds on how soon something comes are
// generous, since machines are busy. How soon it came, a [Figure] tells, which decides
// nothing.
//
// # Histories
//
// The cases break one thing at a time. [RunHistory], or [History] in a program, lets
// several processes contend while anything breaks at any time, records what they were told, and checks that no two of
// them believed to hold a key at once, that tokens rose, and that all are served in the
// end. A seed repeats its choices.
//
// # What is not judged
//
//   - What a store does when it loses what it has confirmed: a failover that is
//     asynchronous, a restart without persistence, an eviction. Each backend says in
//     its package comment what is left then, and tests that itself.
//   - Machines: all clients run on this one, with one clock, and to the server's kernel
//     they never vanish.
//   - Which errors of a driver pass, and which do not (W4), and what a client library
//     sends twice: that is about one store.
//   - Absence. That a case passes shows that it did not fail this time; the random ones
//     and the histories are worth more the more often they run.
//
// # Errors
//
// [Fail] means that the rule is broken. [Error] means that nothing was judged: the
// store did not answer at the start, a part of the Harness failed, or the suite.
//
// # Hooks
//
// Check calls a function with each result as it comes; [Run] reports to its testing.T.
// Nothing logs, but a child process prints its answers on its standard output, which
// the suite reads.
package conformance

//go:generate go test -run ^(TestContractPage|TestMutants) -update .
