package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/memlock"
)

func TestMain(m *testing.M) {
	if os.Getenv(taskEnv) != "" {
		main() // as an instance: TestProcesses started it
	}
	goleak.VerifyTestMain(m, testenv.Leaving...)
}

// playInMemory plays p in this process, in the bubble's time.
func playInMemory(t *testing.T, p plan, db marks) (string, error) {
	t.Helper()
	store := memlock.NewStore()
	var out bytes.Buffer
	err := play(t.Context(), p, inGoroutine(func(context.Context) (locker.Locker, error) {
		return memlock.New(store, nil)
	}, db), &out)
	t.Log(out.String())
	require.Zero(t, store.Len(), "all locks are free again")
	return out.String(), err
}

// calm is one round in which all goes well.
func calm(job, skew time.Duration) plan {
	return plan{Rounds: 1, Instances: 5, TTL: time.Second, Job: job, Skew: skew}
}

// linesWith are the lines of out that contain text.
func linesWith(out, text string) (lines []string) {
	for line := range strings.Lines(out) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestPlay_runsOnceThoughTheJobIsShorterThanTheSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := playInMemory(t, calm(10*time.Millisecond, time.Second), newMemory())
		require.NoError(t, err)
		require.Empty(t, linesWith(out, "skips"), "each finds the lock free")
		require.Len(t, linesWith(out, "the mark set: report 2000-01-01 done by instance-1 with token"), 4)
		require.Contains(t, out, "1 rounds, runs per round = 1, takeovers = 0, refused stale writes = 0")
	})
}

func TestPlay_skipNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := playInMemory(t, calm(time.Second, 100*time.Millisecond), newMemory())
		require.NoError(t, err)
		require.Len(t, linesWith(out, "skips: instance-1 is at it"), 4)
	})
}

// forgetful is a database whose marks do not last: the lock is alone.
type forgetful struct{}

func (forgetful) update(_ context.Context, _ string, change func(*mark) error) error {
	return change(new(mark))
}

func TestPlay_noticesWhatALockAloneDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := playInMemory(t, calm(10*time.Millisecond, time.Second), forgetful{})
		require.EqualError(t, err, "a report was written twice or never")
		require.Contains(t, out, "runs per round = [5]")
	})
}

func TestPlay_noticesARoundInWhichNobodyRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nobody := func(context.Context, task, func(event)) error { return nil }
		var out bytes.Buffer
		require.Error(t, play(t.Context(), calm(0, 0), nobody, &out))
		require.Contains(t, out.String(), "runs per round = [0]")
	})
}

func TestPlay_crashIsTakenOverAndAStaleWriteRefused(t *testing.T) {
	for name, p := range map[string]plan{
		"as by default":                 {Rounds: 3, Instances: 5, TTL: time.Second, Job: 300 * time.Millisecond, Skew: 500 * time.Millisecond},
		"all at once":                   {Rounds: 3, Instances: 5, TTL: time.Second, Job: time.Millisecond},
		"job longer than the lease":     {Rounds: 3, Instances: 3, TTL: time.Second, Job: 10 * time.Second, Skew: time.Second},
		"instances come after takeover": {Rounds: 3, Instances: 3, TTL: time.Second, Job: time.Second, Skew: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, err := playInMemory(t, p, newMemory())
				require.NoError(t, err)
				requireWholeStory(t, out)
			})
		})
	}
}

// requireWholeStory checks the output of three rounds.
func requireWholeStory(t *testing.T, out string) {
	t.Helper()
	require.Len(t, linesWith(out, "crashes before"), 1)
	require.Len(t, linesWith(out, "takes over with token"), 2)
	require.Len(t, linesWith(out, "freezes before"), 1)
	require.Len(t, linesWith(out, "is refused: token"), 1)
	require.Len(t, linesWith(out, "has written the report"), 3)
	require.Contains(t, out, "3 rounds, runs per round = 1, takeovers = 2, refused stale writes = 1")
}

func TestRun_tellsByItsExitCode(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"-h", 0, "how long it takes to write the report"},
		{"-rounds 1 -instances 3 -ttl 200ms -job 5ms -skew 20ms", 0, "1 rounds, runs per round = 1"},
		{"-instances 1", 2, "two instances at least"},
		{"-ttl 1ms", 2, "too short"},
		{"-job -1s", 2, "negative"},
		{"today", 2, `unexpected argument "today"`},
		{"-url ftp://me:secret@localhost", 1, `unknown scheme "ftp"`},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out bytes.Buffer
			code := run(t.Context(), strings.Fields(tc.args), &out, &out)
			require.Equal(t, tc.code, code, out.String())
			require.Contains(t, out.String(), tc.says)
			require.NotContains(t, out.String(), "secret")
		})
	}
}
