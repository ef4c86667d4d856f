package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/internal/testenv"
)

// TestMain makes this test binary a child of a history, as main does.
func TestMain(m *testing.M) {
	logging.Disable()
	registerControls()
	if conformance.Child(context.Background(), harness(os.Getenv(urlEnv))) {
		return
	}
	// The parts wait more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, testenv.Leaving...)
}

// soakWith runs the command, with short histories and one trial of each figure.
func soakWith(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), append([]string{"-length", "1s", "-seeds", "1", "-trials", "1"}, args...), &o, &e)
	return code, o.String(), e.String()
}

// Each part is played once, as briefly as can be, and has to come to its end: histories
// with a lock that keeps its contract, and controls with ones that do not. Behind
// Sentinel and in a cluster the parts are the same again, on more servers.
func TestRun_playsEachPart(t *testing.T) {
	t.Parallel()
	again := regexp.MustCompile(`/(sentinel|cluster)$`)
	for _, p := range new(soak).parts() {
		if again.MatchString(p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := soakWith(t, "-only", "^"+regexp.QuoteMeta(p.name)+"$")
			if !testenv.Required() && strings.Contains(errs, testenv.ErrNotInstalled.Error()) {
				t.Skip(errs)
			}
			t.Log(out)
			assert.Empty(t, errs)
			assert.True(t, strings.HasPrefix(out, p.name+" ("), "another part")
			switch kind, _, _ := strings.Cut(p.name, "/"); kind {
			case "controls":
				assert.Zero(t, code)
				for _, c := range controls {
					assert.Contains(t, out, "   "+c.scheme+": caught by seed ")
				}
			case "histories":
				assert.Zero(t, code)
				assert.Regexp(t, `(?m)^   1 seeds: [1-9]\d* grants, .* faults; .* 0 violations$`, out)
			default: // whether a trial succeeds is for a machine that does nothing else
				assert.Less(t, code, 2)
				assert.Regexp(t, `least .* of 1\n|double grants\n|left out`, out)
			}
		})
	}
}

// What breaks the contract is not overlooked: the exit code says so.
func TestHistories_ofABrokenLockFail(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := soak{out: &out, first: 1, seeds: 1}
	err := withRedis(t.Context(), func(h conformance.Harness) error { return s.histories(t.Context(), controls[0].harness(h), 1) })
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	assert.True(t, s.broken)
	assert.NotContains(t, out.String(), " 0 violations")
}

func TestRun_refusesWhatItDoesNotUnderstand(t *testing.T) {
	for args, says := range map[string]string{"-only (": "missing closing", "-nonsense": "-nonsense", "-seeds x": "-seeds"} {
		code, out, errs := soakWith(t, strings.Fields(args)...)
		assert.Equal(t, 2, code, args)
		assert.Empty(t, out)
		assert.Contains(t, errs, says)
	}
	code, out, _ := soakWith(t, "-only", "no such part")
	assert.Zero(t, code, "there is nothing to do")
	assert.Empty(t, out)
	code, _, errs := soakWith(t, "-h")
	assert.Zero(t, code)
	assert.Contains(t, errs, "-seeds")
}
