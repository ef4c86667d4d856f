package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/memlock"
)

// Under broken:// every Locker has a store of its own, so that all get the lock.
func init() {
	locker.Register("broken", func(context.Context, *url.URL, locker.OpenConfig) (locker.Locker, error) {
		return memlock.New(nil, nil)
	})
}

func inProcess(t *testing.T, args ...string) ended {
	t.Helper()
	var out, errs bytes.Buffer
	code := newApp(&out, &errs).run(t.Context(), append([]string{"locker"}, args...))
	return ended{code: code, out: out.String(), err: errs.String()}
}

func TestConformance_isZeroWhereTheRulesHold(t *testing.T) {
	w := newWorld(t)
	for name, url := range map[string]string{"memory": "mem://", "Redis": w.url} {
		t.Run(name, func(t *testing.T) {
			e := shell(t, url, `"$L" conformance -run '^(G1|R1)' -ttl 500ms`)
			e.requireCode(t, 0)
			assert.Contains(t, e.out, "pass  G1/lockers\n")
			assert.Contains(t, e.out, " 0 skip, 0 fail, 0 error")
			assert.Empty(t, e.err)
		})
	}
	names, err := w.redis().Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Equal(t, []string{"test:\x00token"}, names, "left behind")
}

func TestConformance_startsCopiesOfItself(t *testing.T) {
	w := newWorld(t)
	e := w.at("conformance", "-run", "^G1/processes$")
	e.requireCode(t, 0)
	assert.Contains(t, e.out, "pass  G1/processes\n")
}

func TestConformance_faultsAreOnRequest(t *testing.T) {
	w := newWorld(t)
	e := w.at("conformance", "-run", "^G4/lost-reply$", "-faults")
	e.requireCode(t, 0)
	assert.Contains(t, e.out, "1 pass")
	e = w.at("conformance", "-run", "^G4/lost-reply$")
	e.requireCode(t, 2, "nothing was tested")
	assert.Contains(t, e.out, "1 skip")
}

// A user of the command has no Harness to add a field to.
func TestConformance_aSkipSaysWhatTheUserCanDo(t *testing.T) {
	w := newWorld(t)
	for name, tc := range map[string]struct{ url, id, says string }{
		"networks":         {w.url, "H2/black-hole", "needs --faults"},
		"server":           {w.url, "H2/server-frozen", "only from Go: it breaks the server"},
		"names":            {w.url, "W3/no-residue", "only from Go: it lists the store's names"},
		"requests":         {w.url, "W2/one-remote-waiter", "only from Go: it counts the requests"},
		"memory, networks": {"mem://", "H2/black-hole", "this store has no connections to break"},
		"memory, server":   {"mem://", "H2/server-frozen", "no server"},
	} {
		t.Run(name, func(t *testing.T) {
			e := shell(t, tc.url, `"$L" conformance -run '^`+tc.id+`$'`)
			e.requireCode(t, 2, "nothing was tested")
			assert.Contains(t, e.out, "skip  "+tc.id+": ")
			assert.Equal(t, 2, strings.Count(e.out, tc.says), "for the case and in the summary:\n%s", e.out)
			assert.NotContains(t, e.out, "Harness")
		})
	}
	e := inProcess(t, "conformance", "mem://", "-run", "^G1/processes$", "-json", "-")
	e.requireCode(t, 2, "nothing was tested")
	var got jsonReport
	require.NoError(t, json.Unmarshal([]byte(e.out), &got))
	assert.False(t, got.OK)
}

func TestConformance_isOneWhereARuleIsBroken(t *testing.T) {
	e := inProcess(t, "conformance", "broken://", "-run", "^(G1/lockers|H2/deadline)$", "-ttl", "200ms")
	e.requireCode(t, 1, "rules are broken")
	assert.Contains(t, e.out, "fail  G1/lockers\n\tseen: ")
	assert.Contains(t, e.out, "1 fail")
}

// A slow answer in a short lease is no fault of the store.
func TestConformance_aShortTTLIsDoubtedFirst(t *testing.T) {
	inProcess(t, "conformance", "broken://", "-ttl", "10ms").requireCode(t, 64, "-ttl 10ms is not between 100ms and")
	short := inProcess(t, "conformance", "broken://", "-run", "^G1/lockers$", "-ttl", ".2")
	short.requireCode(t, 1, "rules are broken, or -ttl 200ms is too short for this store: the default is 1s")
	long := inProcess(t, "conformance", "broken://", "-run", "^G1/lockers$")
	long.requireCode(t, 1, "rules are broken")
	assert.NotContains(t, long.err, "-ttl")
}

func TestConformance_isTwoWhereNothingWasTested(t *testing.T) {
	e := shell(t, "", `"$L" conformance -json - redis://user:secret@127.0.0.1:1/0`)
	e.requireCode(t, 2, "refused")
	assert.NotContains(t, e.err+e.out, "secret")
	assert.NotContains(t, e.err, "G1/", "no case can be judged")
	var got jsonReport
	require.NoError(t, json.Unmarshal([]byte(e.out), &got))
	assert.Equal(t, len(conformance.Cases()), got.Count[conformance.Error])
	assert.False(t, got.OK)
	shell(t, "mem://", `"$L" conformance -json /no/such/directory/report`).requireCode(t, 2, "no such")
	shell(t, "nowhere://x", `"$L" conformance`).requireCode(t, 64, "unknown scheme")
	shell(t, "", `"$L" conformance`).requireCode(t, 64, "LOCKER_URL")
}

func TestConformance_listTouchesNoStore(t *testing.T) {
	e := shell(t, "", `"$L" conformance -list -run '^(G1|R1)'`)
	e.requireCode(t, 0)
	assert.Contains(t, e.out, "G1/lockers ")
	assert.NotContains(t, e.out, "G2/")
	e = shell(t, "", `"$L" conformance -list`)
	assert.Equal(t, len(conformance.Cases()), strings.Count(e.out, "\n"))
	assert.Regexp(t, `(?m)^H2/black-hole .* \[needs --faults\]$`, e.out)
	assert.Regexp(t, `(?m)^W3/no-residue .* \[only from Go: .*\]$`, e.out)
	assert.Regexp(t, `(?m)^G1/lockers .*[^\]]$`, e.out)
}

func TestConformance_reportsCanBeReadBack(t *testing.T) {
	dir := t.TempDir()
	j, x := filepath.Join(dir, "report.json"), filepath.Join(dir, "report.xml")
	const cases = "^(G1/lockers|H2/deadline|W3/no-residue)$"
	e := inProcess(t, "conformance", "-run", cases, "-ttl", "200ms", "-json", j, "-junit", x, "broken://user:secret@host/?password=secret")
	e.requireCode(t, 1)

	text, err := os.ReadFile(j)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "secret")
	var got jsonReport
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Equal(t, 1, got.Version)
	assert.Equal(t, "broken://host", got.Store)
	assert.Equal(t, "memory", got.Backend)
	assert.Contains(t, got.Capabilities, "token")
	assert.False(t, got.OK)
	assert.False(t, got.Interrupted)
	assert.Contains(t, e.out, got.Summary)
	byID := make(map[string]jsonCase)
	for _, c := range got.Cases {
		byID[c.ID] = c
	}
	failed := byID["G1/lockers"]
	assert.Equal(t, conformance.Fail, failed.Status)
	assert.Equal(t, conformance.Must, failed.Level)
	require.NotEmpty(t, failed.Failures)
	assert.NotEmpty(t, failed.Failures[0].Seen)
	assert.NotEmpty(t, failed.Failures[0].Place)
	assert.Equal(t, conformance.Pass, byID["H2/deadline"].Status)
	assert.Equal(t, len(got.Cases), got.Count["pass"]+got.Count["fail"]+got.Count["skip"])

	text, err = os.ReadFile(x)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "secret")
	var suites struct {
		Suites []junitSuite `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(text, &suites))
	require.Len(t, suites.Suites, 1)
	suite := suites.Suites[0]
	assert.Equal(t, len(got.Cases), suite.Tests)
	assert.Equal(t, got.Count["fail"], suite.Failures)
	assert.Equal(t, got.Count["skip"], suite.Skipped)
	for _, c := range suite.Cases {
		assert.Equal(t, byID[c.Name].Status == conformance.Fail, c.Failure != nil, c.Name)
		assert.Equal(t, byID[c.Name].Status == conformance.Skip, c.Skipped != nil, c.Name)
	}
}

func TestConformance_aReportOnStandardOutputIsAloneThere(t *testing.T) {
	e := shell(t, "mem://", `"$L" conformance -run ^G1/lockers$ -json -`)
	e.requireCode(t, 0, "pass  G1/lockers")
	var got jsonReport
	require.NoError(t, json.Unmarshal([]byte(e.out), &got))
	assert.True(t, got.OK)

	e = shell(t, "mem://", `"$L" conformance -run ^G1/lockers$ -junit -`)
	e.requireCode(t, 0, "pass  G1/lockers")
	require.NoError(t, xml.Unmarshal([]byte(e.out), &struct{ XMLName xml.Name }{}))
}

func TestReports_aFailedShouldFailsNobody(t *testing.T) {
	r := run{Report: &conformance.Report{Results: []conformance.Result{
		{Case: conformance.Case{ID: "W2/a", Level: conformance.Should}, Status: conformance.Fail, Failures: []conformance.Failure{{Seen: "slow \x00 <"}}},
		{Case: conformance.Case{ID: "W2/b", Level: conformance.Must}, Status: conformance.Error, Reason: "broke"},
	}}}
	var b bytes.Buffer
	require.NoError(t, writeJUnit(&b, r))
	var suites struct {
		Suites []junitSuite `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(b.Bytes(), &suites), "%s", &b)
	suite := suites.Suites[0]
	assert.Equal(t, []int{0, 1, 1}, []int{suite.Failures, suite.Errors, suite.Skipped})
	assert.Contains(t, suite.Cases[0].Skipped.Message, "slow")
	assert.Equal(t, "broke", suite.Cases[1].Error.Message)
}
