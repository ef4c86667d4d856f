package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

// advisoryLocks is the URL of a database of its own.
func advisoryLocks(t *testing.T) string {
	t.Helper()
	srv, err := testenv.AnyPostgres(t.Context())
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srv.Stop()) })
	url, err := srv.NewDatabase(t.Context())
	require.NoError(t, err)
	return url + "&application_name=app&locker_mode=advisory&locker_create=true"
}

func TestRelease_endsASessionOnlyWhenToldToAndSaysWhatFallsWithIt(t *testing.T) {
	url := advisoryLocks(t)
	holder, err := locker.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = holder.Close(ended)
	})
	command := func(args ...string) ended { return execute(t, url, program, args...) }
	take := func(key string) locker.Lock {
		k, err := holder.Acquire(t.Context(), key)
		require.NoError(t, err)
		return k
	}
	report, mails := take("report"), take("mails")

	who := command("who", "report")
	who.requireCode(t, 0)
	require.Regexp(t, `(?m)^holder:    pid \d+ \(app \[locker 30s\]\)$`, who.out)
	assert.Contains(t, who.out, "\nlabel:     -\n")
	session := strings.TrimPrefix(strings.Split(who.out, "\n")[1], "holder:    ")
	ls := command("ls")
	ls.requireCode(t, 0)
	assert.Equal(t, 2, strings.Count(ls.out, "\t"+session+"\t-\n"), ls.out)
	assert.Regexp(t, `(?m)\A(-?\d+\t.*\n){2}\z`, ls.out, "keys are numbers")

	command("release", "--session", "report").requireCode(t, exitUsage, "--force")
	refused := command("release", "--force", "report")
	refused.requireCode(t, exitUsage, "--session")
	assert.Contains(t, refused.err, session)
	assert.Contains(t, refused.err, "2 locks")
	require.NoError(t, report.Err())
	require.NoError(t, mails.Err())

	broken := command("release", "--force", "--session", "report")
	broken.requireCode(t, 0)
	assert.Contains(t, broken.out, "report")
	assert.Contains(t, broken.out, session)
	assert.Contains(t, broken.out, "2 locks fell")
	for _, k := range []locker.Lock{report, mails} { // H5
		select {
		case <-k.Done():
			require.ErrorIs(t, k.Err(), locker.ErrLost)
		case <-time.After(patience):
			t.Fatal("the holder is not told")
		}
	}
	command("release", "--force", "--session", "report").requireCode(t, exitFree, "free")

	take("report")
	assert.Contains(t, command("release", "--force", "--session", "report").out, "1 lock fell")
}

func TestRelease_ofASessionIsAWrongCallWhereEachLockHasItsOwnHolder(t *testing.T) {
	w := newWorld(t)
	k := w.hold("k")
	w.at("release", "--force", "--session", "k").requireCode(t, 64, "--session")
	require.NoError(t, k.Release(t.Context()), "it was broken")
}
