package locker_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	_ "github.com/go-locker/locker/memlock"
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
		"ftp://x":                    "unknown scheme",
		"redis://x":                  "github.com/go-locker/locker/redislock",
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

func TestRegister_panicsOnASecondOpener(t *testing.T) {
	require.Panics(t, func() {
		locker.Register("mem", func(context.Context, *url.URL, locker.OpenConfig) (locker.Locker, error) { return nil, nil })
	})
}
