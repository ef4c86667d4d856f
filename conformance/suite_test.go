package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
)

// only makes a filter for one case.
func only(id string) *regexp.Regexp { return regexp.MustCompile("^" + regexp.QuoteMeta(id) + "$") }

// judge runs one case on a world of its own, in a bubble: on a clock that does
// not depend on the machine.
func judge(t *testing.T, id string, set func(*world)) conformance.Result {
	t.Helper()
	var report *conformance.Report
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		if broken(caseOf(id)) {
			w.server = newServer()
		}
		if set != nil {
			set(w)
		}
		report = conformance.Check(t.Context(), w.harness(), only(id), nil)
		time.Sleep(time.Minute) // what a Locker has given up on comes to its end
		if w.server != nil {
			w.server.stop()
		}
	})
	require.Len(t, report.Results, 1)
	return report.Results[0]
}

func caseOf(id string) conformance.Case {
	for _, c := range conformance.Cases() {
		if c.ID == id {
			return c
		}
	}
	panic("no case " + id)
}

// broken reports whether the case breaks the network or the server.
func broken(c conformance.Case) bool {
	return c.Uses&(conformance.PartNetwork|conformance.PartServer) != 0
}

// bubbleCases are the cases that need no processes, which a bubble cannot have.
func bubbleCases() []conformance.Case {
	return slices.DeleteFunc(conformance.Cases(), func(c conformance.Case) bool {
		return c.Uses&conformance.PartProcesses != 0
	})
}

func TestCases_areWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	rules := make(map[string]string)
	for _, c := range conformance.Cases() {
		require.Regexp(t, `^([GHRWK]\d|House)/[a-z0-9-]+$`, c.ID)
		require.False(t, seen[c.ID], "%s twice", c.ID)
		seen[c.ID] = true
		require.Contains(t, []conformance.Level{conformance.Must, conformance.Should}, c.Level, c.ID)
		require.True(t, strings.HasSuffix(c.Rule, "."), "%s: the rule is a sentence: %q", c.ID, c.Rule)
		id, _, _ := strings.Cut(c.ID, "/")
		if other, ok := rules[c.Rule]; ok {
			require.Equal(t, other, id, "one sentence under two rules: %q", c.Rule)
		}
		rules[c.Rule] = id
		for _, cite := range c.Cites {
			require.Regexp(t, `^C\d{2,3}$`, cite, c.ID)
		}
	}
}

// pass runs all cases. Those that need one of lacks, or are not for sessions where there
// are some, have to be skipped, and all others to pass.
func pass(t *testing.T, set func(*world), lacks locker.Capability) {
	t.Helper()
	for _, c := range bubbleCases() {
		want := conformance.Pass
		if c.Needs&lacks != 0 || c.Except&^(lacks|locker.CapSessionPerLock) != 0 {
			want = conformance.Skip
		}
		if r := judge(t, c.ID, set); r.Status != want {
			t.Errorf("%s wanted, not %v", want, r)
		}
	}
}

func TestCases_passOnMemory(t *testing.T) {
	pass(t, nil, locker.CapSessionHolder)
}

func TestCases_passOnASlowStoreThatPushesNoLosses(t *testing.T) {
	pass(t, func(w *world) {
		w.latency = 2 * time.Millisecond
		w.unsaid = true
	}, locker.CapSessionHolder|locker.CapPushLoss)
}

func TestCases_passOnSessions(t *testing.T) { // R4
	pass(t, onSessions, locker.CapExtend)
}

// A lock can be a connection's own, and what is known of its holder no more than that
// there is one.
func TestCases_passWithoutHolders(t *testing.T) {
	const lacks = locker.CapHolder | locker.CapInspect | locker.CapExtend
	pass(t, func(w *world) {
		w.info = func(i *locker.Info) { i.Can &^= lacks }
		w.onOpen = func(c *client) locker.Backend {
			return struct {
				locker.Backend
				locker.Queuer
				locker.LossPusher
				locker.Closer
			}{c, c, c.inner.(locker.LossPusher), c}
		}
		w.attempt = func(_ context.Context, _ *client, req locker.Request, next attempt) (locker.Grant, error) {
			g, err := next(req)
			if he := (*locker.HeldError)(nil); errors.As(err, &he) {
				err = &locker.HeldError{Key: he.Key}
			}
			return g, err
		}
	}, lacks|locker.CapSessionHolder)
}

func TestCheck_filtersAndReports(t *testing.T) {
	var seen []string
	h := newWorld().harness()
	h.TTL = 200 * time.Millisecond
	h.Requests = nil
	r := conformance.Check(t.Context(), h, regexp.MustCompile(`^R1/|^W1/killed|^K1/invalid-sends`), func(r conformance.Result) {
		seen = append(seen, r.Case.ID)
		require.NotContains(t, r.String(), "\n")
	})
	require.Equal(t, "memory", r.Backend)
	require.True(t, r.Can.Has(locker.CapExclusive|locker.CapFIFO))
	require.Len(t, r.Results, len(seen))
	require.Equal(t, []string{"R1/twice", "R1/at-once", "R1/late", "R1/late-in-same-locker", "R1/around-expiry", "R1/forced", "K1/invalid-sends-nothing"}, seen, "table order")
	require.True(t, r.OK())
	require.Equal(t, "7 cases: 6 pass, 1 skip, 0 fail, 0 error, 1 about other kinds of stores; skipped: 1 × no Harness.Requests", r.Summary())
}

func TestCheck_countsNothingButWhatOnlyChooses(t *testing.T) {
	h := newWorld().harness()
	h.Only = func(c conformance.Case) bool {
		return c.Uses&conformance.PartProcesses == 0 && c.Level == conformance.Must
	}
	// Of these, one is about processes and one a Should.
	r := conformance.Check(t.Context(), h, regexp.MustCompile(`^W1/killed|^W2/no-starvation|^G3/owner|^G3/label`), nil)
	require.Equal(t, "2 cases: 2 pass, 0 skip, 0 fail, 0 error", r.Summary())
	require.Zero(t, r.NotApplicable)
}

func TestCheck_skipsNameWhatIsMissing(t *testing.T) {
	h := newWorld().harness()
	h.Can = locker.CapExclusive
	h.Requests = nil
	r := conformance.Check(t.Context(), h, only("W2/one-remote-waiter"), nil).Results[0]
	require.Equal(t, conformance.Skip, r.Status)
	require.Equal(t, "no wake-up, Harness.Requests", r.Reason)
}

func TestCheck_skipsWhatTheLockerPromisesLessOf(t *testing.T) {
	r := judge(t, "House/list", onSessions)
	require.Equal(t, conformance.Skip, r.Status)
	require.Equal(t, "not with session holder", r.Reason)
}

func TestCheck_failureTellsSeenWantedRuleAndPlace(t *testing.T) {
	r := judge(t, "R2/cancelled-context", func(w *world) {
		w.release = func(context.Context, *grant) error { return errors.New("out of order") }
	})
	require.Equal(t, conformance.Fail, r.Status)
	require.Regexp(t, `^fail  R2/cancelled-context
	seen:   Release: .*out of order
	wanted: nil: the context was over before the call
	rule:   MUST The work runs detached; .*
	at:     release.go:\d+`, r.String())
}

func TestCheck_failedShouldIsReportedAndFailsNobody(t *testing.T) {
	i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == "waiter-starves" })
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		mutants[i].set(w)
		r := conformance.Check(t.Context(), w.harness(), only("W2/no-starvation"), nil)
		require.Equal(t, conformance.Fail, r.Results[0].Status)
		require.True(t, r.OK())
		require.Equal(t, "1 cases: 0 pass, 0 skip, 1 fail, 0 error (1 of the failed are SHOULD)", r.Summary())
	})
}

func TestCheck_brokenHarnessIsAnError(t *testing.T) {
	errBroken := errors.New("the server is not there")
	for name, tc := range map[string]struct {
		id     string
		breaks func(*conformance.Harness)
		want   string
	}{
		"no Open": {"G3/owner", func(h *conformance.Harness) { h.Open = nil }, "Harness.Open is nil"},
		"Open fails": {"G3/owner", func(h *conformance.Harness) {
			h.Open = func(context.Context) (locker.Locker, error) { return nil, errBroken }
		}, "Harness.Open: " + errBroken.Error()},
		"Open fails later": {"G3/owner", func(h *conformance.Harness) {
			open, n := h.Open, 0
			h.Open = func(ctx context.Context) (locker.Locker, error) {
				if n++; n > 2 {
					return nil, errBroken
				}
				return open(ctx)
			}
		}, "Harness.Open: " + errBroken.Error()},
		"Names fails": {"W3/no-residue", func(h *conformance.Harness) {
			h.Names = func(context.Context) ([]string, error) { return nil, errBroken }
		}, "Harness.Names: " + errBroken.Error()},
		"OpenVia fails": {"G4/lost-reply", func(h *conformance.Harness) {
			h.OpenVia = func(context.Context, *faultnet.Network) (locker.Locker, error) { return nil, errBroken }
		}, "Harness.OpenVia: " + errBroken.Error()},
		"OpenVia dials by itself": {"G4/lost-reply", func(h *conformance.Harness) {
			h.OpenVia = func(ctx context.Context, _ *faultnet.Network) (locker.Locker, error) { return h.Open(ctx) }
		}, "Harness.OpenVia has made no connection through its network: the client has to dial by net.Dial"},
		"no server": {"G3/owner", func(h *conformance.Harness) {
			open := h.Open
			h.Open = func(ctx context.Context) (locker.Locker, error) {
				l, err := open(ctx)
				return wrapped{Locker: l, try: func(context.Context, string, ...locker.Option) (locker.Lock, error) {
					return nil, errBroken
				}}, err
			}
		}, "the store of Harness.Open cannot be used: " + errBroken.Error()},
		"Kill fails": {"G3/token-after-restart", func(h *conformance.Harness) {
			h.Server = &conformance.Server{
				Kill:    func(context.Context) error { return errBroken },
				Restart: func(context.Context) error { return nil },
			}
		}, "Server.Kill: " + errBroken.Error()},
		"mending fails": {"G3/token-after-restart", func(h *conformance.Harness) {
			h.Server = &conformance.Server{
				Kill:    func(context.Context) error { panic("half-way") },
				Restart: func(context.Context) error { return errBroken },
			}
		}, "mending the server: " + errBroken.Error()},
		"capabilities unknown": {"G3/owner", func(h *conformance.Harness) {
			open := h.Open
			h.Open = func(ctx context.Context) (locker.Locker, error) {
				l, err := open(ctx)
				return struct{ locker.Locker }{l}, err
			}
		}, "nothing is promised: set Harness.Can, or declare at least CapExclusive in the backend's Info"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.server = newServer()
			h := w.harness()
			tc.breaks(&h)
			report := conformance.Check(t.Context(), h, only(tc.id), nil)
			r := report.Results[0]
			require.Equal(t, conformance.Error, r.Status, "%v", r)
			require.Equal(t, tc.want, r.Reason)
			require.False(t, report.OK())
		})
	}
}

func TestCheck_mendsTheServerThatAFailedCaseLeftBroken(t *testing.T) {
	var s *server
	r := judge(t, "H2/server-frozen", func(w *world) {
		s = w.server
		w.locker = locks(func(k locker.Lock, _ locker.Locker) locker.Lock {
			return &lock{Lock: k, done: make(chan struct{})} // no loss is told: the case ends in the pause
		})
	})
	require.Equal(t, conformance.Fail, r.Status)
	require.Contains(t, r.String(), "Done is open")
	require.Nil(t, s.paused)
}

func TestCheck_reportsFigures(t *testing.T) {
	r := judge(t, "H2/black-hole", nil)
	require.Equal(t, conformance.Pass, r.Status)
	require.Len(t, r.Figures, 1)
	require.Equal(t, "lead of Done before the next grant, black hole", r.Figures[0].Name)
	require.Positive(t, r.Figures[0].Value)
}

func TestCheck_endedContextRunsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := conformance.Check(ctx, newWorld().harness(), only("G3/owner"), nil).Results[0]
	require.Equal(t, conformance.Error, r.Status)
	require.Equal(t, "not run: context canceled", r.Reason)
}

func TestCheck_interruptedCaseIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := conformance.Check(ctx, newWorld().harness(), only("H1/renewed"), nil).Results[0]
		require.Equal(t, conformance.Error, r.Status)
		require.Equal(t, "interrupted: context deadline exceeded", r.Reason)
	})
}

func TestCheck_panicOfTheLockerIsAFailure(t *testing.T) {
	for _, id := range []string{"G3/owner", "G1/goroutines"} { // on the case's goroutine, and on others
		r := judge(t, id, acquires(func(context.Context, acquiring) (locker.Lock, error) { panic("no such thing") }))
		require.Equal(t, conformance.Fail, r.Status, "%v", r)
		require.Contains(t, r.String(), "panic: no such thing")
		require.Contains(t, r.String(), "suite_test.go")
	}
}

func TestCheck_stuckCaseIsEndedAndShown(t *testing.T) {
	r := judge(t, "G1/goroutines", func(w *world) {
		w.locker = lockers(func(l locker.Locker, _ int) wrapped {
			closed := make(chan struct{})
			return wrapped{Locker: l,
				acquire: func(context.Context, string, ...locker.Option) (locker.Lock, error) {
					<-closed // whatever the context says
					return nil, locker.ErrClosed
				},
				close: func(ctx context.Context) error {
					close(closed)
					return l.Close(ctx)
				},
			}
		})
	})
	require.Equal(t, conformance.Fail, r.Status)
	require.Contains(t, r.String(), "the case has not ended after 50s")
	require.Contains(t, r.String(), "suite_test.go")
	require.Less(t, r.Took, 2*time.Minute)
}

func ExampleCheck() {
	report := conformance.Check(context.Background(), newWorld().harness(), regexp.MustCompile("^R2/cancelled"), nil)
	fmt.Println(report.OK(), report.Summary())
	// Output: true 1 cases: 1 pass, 0 skip, 0 fail, 0 error
}
