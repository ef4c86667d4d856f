package redislock

import (
	"context"
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestOpen_takesPrefixAndTTLFromTheURL(t *testing.T) {
	srv := startServer(t, "requirepass secret")
	rdb := connect(t, srv, func(o *redis.Options) { o.Password, o.DB = "secret", 3 })
	l, err := locker.Open(t.Context(), "redis://:secret@"+srv.Addr()+"/3?prefix=app:&ttl=12s&pool_size=2")
	require.NoError(t, err)
	k, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, k.Owner(), rdb.Get(t.Context(), "app:k").Val())
	require.Equal(t, "12s", k.TTL().String())
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, l.Close(context.Background()))
}

func TestOpen_connectsWithTheFirstUse(t *testing.T) {
	l, err := locker.Open(t.Context(), "redis://127.0.0.1:1/0")
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "k")
	require.Error(t, err)
	require.NotErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, l.Close(context.Background()))
}

func TestOpen_refusesWhatItDoesNotKnowAndShowsNoSecrets(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://user:hunter2@host/0?prefx=app:":           "query",
		"redis://user:hunter2@host/0?pool_size=hunter2":    "query",
		"redis://user:hunter2@host/0?read_timeout=hunter2": "query",
		"redis://user:hunter2@host/zero":                   "path",
		"redis://user:hunter2@host/0/1":                    "path",
		"redis://:half@hunter2/0/x@host:6379/0":            "path",
		"rediss://user:hunter2@host/0?addr=other":          "query",
		"redis://user:hunter2@host/0?prefix=%ff":           "UTF-8",
		"redis://user:hunter2@host/0?prefix=a%00b":         "NUL",
		"redis://user:hunter2@host/0?ttl=1ns":              "TTL",
		"redis://user:6379#hunter2@host/0":                 "fragment",
		"redis://us er:hunter2@host/0":                     "parsed",
	} {
		l, err := locker.Open(t.Context(), raw)
		require.ErrorIs(t, err, locker.ErrInvalid, raw)
		require.Nil(t, l)
		require.ErrorContains(t, err, want, raw)
		require.NotContains(t, err.Error(), "hunter2", raw)
	}
}

func TestOpen_errorsOfTheServerShowNoSecrets(t *testing.T) {
	srv := startServer(t, "requirepass right")
	for _, user := range []*url.Userinfo{url.UserPassword("user", "hunter2"), url.UserPassword("", "hunter2")} {
		u := url.URL{Scheme: "redis", User: user, Host: srv.Addr()}
		l, err := locker.Open(t.Context(), u.String())
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "WRONGPASS")
		require.NotContains(t, err.Error(), "hunter2")
		require.NoError(t, l.Close(context.Background()))
	}
}
