package conformance_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	"github.com/go-locker/locker/internal/testenv"
	_ "github.com/go-locker/locker/redislock"
)

// What the test processes tell each other.
const (
	urlEnv    = "LOCKER_TEST_CONFORMANCE_URL"    // the store of a child
	mutantEnv = "LOCKER_TEST_CONFORMANCE_MUTANT" // what TestRun_onMutant is to judge
)

// TestMain is the main function of a program that judges by Check: it calls Child
// first. What Run and RunHistory start goes by.
func TestMain(m *testing.M) {
	if conformance.Child(context.Background(), harnessOf(os.Getenv(urlEnv))) {
		return
	}
	goleak.VerifyTestMain(m, testenv.Leaving...)
}

func harnessOf(url string) conformance.Harness {
	return conformance.Harness{
		Open: func(ctx context.Context) (locker.Locker, error) { return locker.Open(ctx, url) },
		OpenVia: func(ctx context.Context, net *faultnet.Network) (locker.Locker, error) {
			return locker.OpenWith(ctx, url, &locker.OpenConfig{Dial: net.Dial})
		},
		Env: []string{urlEnv + "=" + url},
	}
}

func startRedis(t *testing.T) *testenv.Redis {
	t.Helper()
	srv, err := testenv.StartRedis(t.Context(), nil)
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	return srv
}

var processCases = regexp.MustCompile(`processes$|/killed-holder$|/dead-waiters$`)

func TestCheck_startsProcesses(t *testing.T) {
	report := conformance.Check(t.Context(), harnessOf(startRedis(t).URL()), processCases, nil)
	require.Len(t, report.Results, 4)
	for _, r := range report.Results {
		require.Equal(t, conformance.Pass, r.Status, "%v", r)
		require.NotZero(t, r.Case.Uses&conformance.PartProcesses)
	}
}

// The children take the same key names under another prefix: as if each process had
// a store of its own.
func TestCheck_processesThatDoNotExcludeEachOtherFail(t *testing.T) {
	url := startRedis(t).URL()
	h := harnessOf(url)
	h.Env = []string{urlEnv + "=" + url + "?prefix=elsewhere:"}
	for _, id := range []string{"G1/processes", "W1/killed-holder"} {
		if id == "G1/processes" {
			// Among themselves the children do share a store.
			h.Env = []string{urlEnv + "=mem://"}
		}
		r := conformance.Check(t.Context(), h, only(id), nil).Results[0]
		require.Equal(t, conformance.Fail, r.Status, "%v", r)
	}
}

func TestCheck_processThatCannotOpenIsAnError(t *testing.T) {
	h := harnessOf("mem://")
	h.Env = []string{urlEnv + "=nonsense://"}
	r := conformance.Check(t.Context(), h, only("G1/processes"), nil).Results[0]
	require.Equal(t, conformance.Error, r.Status, "%v", r)
	require.Contains(t, r.Reason, "nonsense")
}

// A program that forgot Child must not start itself without end.
func TestCheck_inAChildThatDidNotCallChildIsAnError(t *testing.T) {
	t.Setenv("LOCKER_CONFORMANCE_CHILD", "program")
	report := conformance.Check(t.Context(), newWorld().harness(), only("G3/owner"), nil)
	require.Equal(t, conformance.Error, report.Results[0].Status)
	require.Contains(t, report.Results[0].Reason, "has to call Child")
	_, err := conformance.History(t.Context(), newWorld().harness(), conformance.HistoryConfig{})
	require.ErrorContains(t, err, "has to call Child")
}

// TestRun_onMutant is for the process that TestRun_tellsGoTest starts.
func TestRun_onMutant(t *testing.T) {
	name := os.Getenv(mutantEnv)
	if name == "" {
		return
	}
	w := newWorld()
	for _, m := range mutants {
		if m.name == name {
			m.set(w)
		}
	}
	h := w.harness()
	h.Requests = nil
	conformance.Run(t, h)
}

func TestRun_tellsGoTest(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	run := func(pattern, mutant string) (string, error) {
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestRun_onMutant$"+pattern, "-test.v")
		cmd.Env = append(os.Environ(), mutantEnv+"="+mutant)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("/(R1|R2|K1)/(twice|cancelled|invalid-sends)", "release-honours-its-context")
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL: TestRun_onMutant/R2/cancelled-context")
	require.Contains(t, out, "wanted: nil: the context was over before the call")
	require.Contains(t, out, "--- PASS: TestRun_onMutant/R1/twice")
	require.Contains(t, out, "--- SKIP: TestRun_onMutant/K1/invalid-sends-nothing")
	require.Contains(t, out, "no Harness.Requests")
	require.Contains(t, out, "3 cases: 1 pass, 1 skip, 1 fail, 0 error, 5 about other kinds of stores; skipped: 1 × no Harness.Requests")

	out, err = run("/W2/starvation", "waiter-starves")
	require.NoError(t, err, "a SHOULD fails nobody: %s", out)
	require.Contains(t, out, "fail  W2/no-starvation")
}
