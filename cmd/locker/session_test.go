package main

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

// session holds all locks of a store in memory, as one connection holds those of a
// Postgres: that is all who can be shown, or ended.
type session struct{ inMemory }

type inMemory interface {
	locker.Backend
	locker.Queuer
	locker.Extender
	locker.BatchRenewer
	locker.LossPusher
	locker.Inspector
}

// theSession is how Postgres' advisory locks show a holder.
const theSession = "pid 4711 (app [locker 30s])"

func (s session) Info() locker.Info {
	info := s.inMemory.Info()
	info.Can |= locker.CapSessionHolder
	return info
}

func (s session) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	h, err := s.inMemory.Inspect(ctx, key)
	return ofSession(h), err
}

func (s session) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	return s.inMemory.List(ctx, func(key string, h locker.Holding) bool {
		for range 2 { // a store may show one more than once
			if !yield(key, ofSession(h)) {
				return false
			}
		}
		return true
	})
}

func (s session) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	if h, err := s.Inspect(ctx, key); err != nil || h.Holder != holder {
		return false, err
	}
	return true, s.inMemory.List(ctx, func(key string, h locker.Holding) bool {
		_, err := s.inMemory.ForceRelease(ctx, key, h.Holder)
		return err == nil
	})
}

func ofSession(h locker.Holding) locker.Holding {
	if h.Holder == "" {
		return h
	}
	return locker.Holding{Holder: theSession, Remaining: h.Remaining}
}

func TestRelease_endsASessionOnlyWhenToldToAndSaysWhatFallsWithIt(t *testing.T) {
	store := memlock.NewStore()
	locker.Register("session", func(_ context.Context, _ *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
		return locker.New(session{memlock.NewBackend(store).(inMemory)}, &cfg.Config)
	})
	holder, err := locker.Open(t.Context(), "session://")
	require.NoError(t, err)
	t.Cleanup(func() { newApp(nil, nil).closeNow(holder) })
	report, err := holder.TryAcquire(t.Context(), "report")
	require.NoError(t, err)
	mails, err := holder.TryAcquire(t.Context(), "mails")
	require.NoError(t, err)
	command := func(args ...string) (code int, out, errs string) {
		var o, e strings.Builder
		code = newApp(&o, &e).run(t.Context(), append([]string{"locker", "--url", "session://"}, args...))
		return code, o.String(), e.String()
	}

	code, out, _ := command("who", "report")
	assert.Zero(t, code)
	assert.Contains(t, out, "holder:    "+theSession+"\nlabel:     -\n")
	_, out, _ = command("ls")
	assert.Contains(t, out, "report\t")
	assert.Contains(t, out, "\t"+theSession+"\t-\n")

	code, out, errs := command("release", "--force", "report")
	assert.Equal(t, exitUsage, code)
	assert.Empty(t, out)
	assert.Contains(t, errs, theSession)
	assert.Contains(t, errs, "2 locks")
	assert.Contains(t, errs, "--session")
	require.NoError(t, report.Err())
	require.NoError(t, mails.Err())
	code, _, errs = command("release", "--session", "report")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, errs, "--force")
	require.NoError(t, report.Err())

	code, out, _ = command("release", "--force", "--session", "report")
	assert.Zero(t, code)
	assert.Contains(t, out, "report")
	assert.Contains(t, out, theSession)
	assert.Contains(t, out, "2 locks fell")
	require.ErrorIs(t, report.Err(), locker.ErrLost)
	require.ErrorIs(t, mails.Err(), locker.ErrLost)
	code, _, _ = command("release", "--force", "--session", "report")
	assert.Equal(t, exitFree, code)

	_, err = holder.TryAcquire(t.Context(), "report")
	require.NoError(t, err)
	_, out, _ = command("release", "--force", "--session", "report")
	assert.Contains(t, out, "1 lock fell")
}

func TestRelease_ofASessionIsAWrongCallWhereEachLockHasItsOwnHolder(t *testing.T) {
	w := newWorld(t)
	k := w.hold("k")
	w.at("release", "--force", "--session", "k").requireCode(t, 64, "--session")
	require.NoError(t, k.Release(t.Context()), "it was broken")
}
