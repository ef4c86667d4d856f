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
// or, in a program, with [Check], which returns a [Report].
//
// A [Harness] offers what a case may need, and everything but Open is optional: the
// names in the store make the cases on residue runnable, a count of requests those on
// load, and an environment for child processes those on crashes. A case that needs
// something the Locker does not declare or the Harness does not offer is skipped, and
// counted.
//
// # What it judges
//
// [Cases] is one table. Each case has a stable id ("R2/cancelled-context"), the
// sentence that it stands for, and a level; the page docs/contract.md lists them all.
// A case opens its own Lockers, uses keys that nobody else uses, and can be run alone.
// A failure tells what was seen, what was wanted, the rule, and the line. A case that
// does not come to an end is ended, and all goroutines are shown.
//
// Bounds on promptness are generous, since machines are busy. What is about safety is
// exact.
//
// # What it does not judge
//
// What needs a broken network, a paused process or a server that dies: lost replies
// and their undo, a loss that is pushed, a renewal that hangs, errors that pass. A
// backend tests those against its own server. And what the store does when it loses
// data.
//
// # Errors
//
// [Fail] means that the rule is broken. [Error] means that nothing was judged: Open
// failed, or a part of the Harness, or the suite.
package conformance

//go:generate go test -run ^(TestContractPage|TestMutants) -update .
