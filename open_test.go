package locker_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

func TestOpen_sharesTheProcessMemory(t *testing.T) { // G1
	a, err := locker.Open(t.Context(), "mem://?ttl=7s")
	require.NoError(t, err)
	closeAfter(t, a)
	b, err := locker.Open(t.Context(), "mem://")
	require.NoError(t, err)
	closeAfter(t, b)
	k := acquire(t, a, t.Name())
	require.Equal(t, 7*time.Second, k.TTL())
	requireHeld(t, b, t.Name())
	require.NoError(t, k.Release(t.Context()))
}

func TestOpen_refusesWhatItDoesNotUnderstand(t *testing.T) {
	for raw, says := range map[string]string{
		"":                           "no scheme",
		"localhost":                  "no scheme",
		"localhost:17301":            "did you mean redis://localhost:17301?",
		"127.0.0.1:6379":             "did you mean redis://127.0.0.1:6379?",
		"[::1]:6379":                 "did you mean redis://[::1]:6379?",
		"redis:6379":                 "did you mean redis://redis:6379?",
		"redis:geheim@h:6379":        "no //",
		"geheim@localhost:6379":      "cannot be parsed",
		"redis:geheim":               "no //",
		"ftp://x":                    "unknown scheme",
		"redis://x":                  "github.com/go-locker/locker/redislock",
		"postgres://u:geheim@h/db":   "github.com/go-locker/locker/pglock",
		"postgresql://h":             "github.com/go-locker/locker/pglock",
		"redis-cluster://a:1,b:2":    "github.com/go-locker/locker/redislock",
		"redis-sentinel://a:1/m":     "github.com/go-locker/locker/redislock",
		"mem://a,b":                  "mem://",
		"mem://?ttl=10":              "not a duration",
		"mem://?ttl=1us":             "TTL",
		"mem://?nonsense=1":          "mem://",
		"mem://host":                 "mem://",
		"ftp://user:geheim@%zz":      "cannot be parsed",
		"mem://user:geheim@/":        "mem://",
		"postgres://u:geheim@h:x/db": "cannot be parsed",
		"mem://?a=%zz&pw=geheim":     "query",
	} {
		l, err := locker.Open(t.Context(), raw)
		require.Nil(t, l, raw)
		require.ErrorIs(t, err, locker.ErrInvalid, raw)
		require.ErrorContains(t, err, says, raw)
		require.NotContains(t, err.Error(), "geheim", raw)
	}
}

var seen *url.URL // by the opener of hosts://

func init() {
	locker.Register("hosts", func(_ context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
		seen = u
		return memlock.New(nil, &cfg.Config)
	})
}

func TestOpen_handsOnTheListOfHosts(t *testing.T) {
	for raw, host := range map[string]string{
		"hosts://":                           "",
		"hosts://a":                          "a",
		"hosts://a:1,b:2":                    "a:1,b:2",
		"hosts://user:p,w@a:1,b:2/x,y?q=1,2": "a:1,b:2",
		"hosts://[::1]:1,[fe80::2],c?ttl=5s": "[::1]:1,[fe80::2],c",
		"hosts://us%2Cer:p%40w@a,b:2#x@y,z":  "a,b:2",
	} {
		l, err := locker.Open(t.Context(), raw)
		require.NoError(t, err, raw)
		closeAfter(t, l)
		require.Equal(t, host, seen.Host, raw)
		if strings.Contains(raw, "p,w") {
			require.Equal(t, "user:p,w", seen.User.String())
			require.Equal(t, "/x,y", seen.Path)
			require.Equal(t, "1,2", seen.Query().Get("q"))
		}
	}
	for _, raw := range []string{
		"hosts://a,,b", "hosts://a,", "hosts://,a", "hosts://user:geheim@a,:2", "hosts://geheim,x:y@z:w,b:2",
		"hosts://a:1,b:x", "hosts://geheim@a,b c", "hosts://geheim:x@a:1,b/%zz",
	} {
		_, err := locker.Open(t.Context(), raw)
		require.ErrorIs(t, err, locker.ErrInvalid, raw)
		require.NotContains(t, err.Error(), "geheim", raw)
	}
}

func TestRegister_panicsOnASecondOpener(t *testing.T) {
	require.Panics(t, func() {
		locker.Register("mem", func(context.Context, *url.URL, locker.OpenConfig) (locker.Locker, error) { return nil, nil })
	})
}
