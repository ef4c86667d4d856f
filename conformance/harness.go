package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// DefaultTTL is the working TTL of a Harness that sets none.
const DefaultTTL = time.Second

// Harness is how the suite reaches what it judges.
type Harness struct {
	// Open returns a new Locker on the one store, with a client of its own:
	// what another process would have. Required. Every case opens its own
	// Lockers and closes them at its end.
	Open func(ctx context.Context) (locker.Locker, error)

	// Can is what the Locker promises. Zero: the suite asks the Locker itself,
	// by the method Info that the Locker of locker.New has.
	Can locker.Capability

	// TTL is the lease that most cases work with. Zero: DefaultTTL. The passing
	// of time is waited for in multiples of it; bounds on promptness do not
	// depend on it. Shorter is faster, and less tolerant of a busy machine.
	TTL time.Duration

	// Names returns every name in the store that is about locks at the moment:
	// held keys, waiters, channels; not the documented, bounded counters.
	// Optional: it makes the cases on residue runnable.
	Names func(ctx context.Context) ([]string, error)

	// Env is added to the environment of the processes that the suite starts,
	// and lets a Harness built there reach the same store. Optional: not nil
	// makes the process cases runnable; an empty one is enough if the store
	// needs no telling. The processes are copies of this one: see Run and Child.
	Env []string

	// OpenVia is Open for a client whose every connection is made by net.Dial, so
	// that the suite can disturb them, and nobody else's. Optional: it makes the
	// cases on broken networks runnable. The suite closes net; a store without
	// connections has nothing to offer here.
	OpenVia func(ctx context.Context, net *faultnet.Network) (locker.Locker, error)

	// Server does to the store's server what a case asks for. Optional: it makes
	// the cases on broken servers runnable. Nobody else should use the server
	// meanwhile. A crash may cost the locks that are held; the tokens after it must be
	// larger all the same.
	Server *Server

	// Only chooses the cases, beside what Check's filter and go test's -run leave.
	// The others are no part of the run: they are not skipped, and not counted.
	// Optional: nil stands for all. It is for a second run on a store of another
	// shape, where the rest of the cases would prove what the first has proved.
	Only func(Case) bool

	// Requests returns how many requests the clients of all opened Lockers have
	// sent so far. Optional: it makes the cases on load runnable.
	Requests func() int64
}

// Server is how the suite breaks a server, and mends it again. Pause, Resume, Kill and
// Restart are required. The functions block until it is done, or ctx ends, and are called one at a time:
// Resume after Pause, Restart after Kill, Reconnect after CutOff, also when a case failed in between. An error
// is an Error of the case. Where the store has several servers they act on the one that
// is in charge of what the suite does, and mend the one that they broke.
type Server struct {
	Pause   func(ctx context.Context) error // stops it in its tracks: it accepts what is sent, and answers nothing
	Resume  func(ctx context.Context) error // ends a Pause, and waits until the store is whole again
	Kill    func(ctx context.Context) error // ends it at once, as a crash does
	Restart func(ctx context.Context) error // brings back what Kill has ended, with its data as far as it keeps them, and waits until the store is whole again

	// CutOff separates it from the other servers, but not from its clients, and Reconnect
	// ends that. Optional: histories make use of it.
	CutOff    func(ctx context.Context) error
	Reconnect func(ctx context.Context) error

	// Failover says that after Kill another server takes over without a Restart.
	Failover bool
}

func (h *Harness) parts() (p Part) {
	if h.Names != nil {
		p |= PartNames
	}
	if h.Env != nil {
		p |= PartProcesses
		if canStop {
			p |= PartStop
		}
	}
	if h.OpenVia != nil {
		p |= PartNetwork
	}
	if h.Server != nil {
		p |= PartServer
	}
	if h.Requests != nil {
		p |= PartRequests
	}
	return p
}

// Run judges h under go test: one subtest per case, with the case's id as its
// name, in the order of the table. go test's own -run chooses cases:
//
//	go test -run 'TestConformance/R2/cancelled-context'
//
// The process cases start this very test binary again, with -test.run set to
// the calling test. There, Run does not judge: it does what it is told on
// standard input. So Run has to be reached by a test of that name alone, with a
// Harness that is built in the same way.
func Run(t *testing.T, h Harness) {
	if serving, mine := childOf(t.Name()); serving {
		if mine {
			serveChild(t.Context(), &h)
		}
		return
	}
	s := newSuite(t.Context(), h, testProcess(t.Name()))
	for _, c := range Cases() {
		if !s.applies(c) {
			continue
		}
		t.Run(c.ID, func(t *testing.T) {
			r := s.judge(t.Context(), c)
			switch {
			case r.Status == Skip:
				t.Skip(r.Reason)
			case r.Status == Fail && c.Level == Should:
				t.Log(r)
			case r.Status != Pass:
				t.Error(r)
			}
		})
	}
	t.Log(s.report.Summary())
}
