package etcdlock

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestEndpoints_areTheHosts(t *testing.T) {
	for hosts, want := range map[string][]string{
		"":                         {"localhost:2379"},
		"a":                        {"a:2379"},
		"a:1,b,[::1]:3,[::1]":      {"a:1", "b:2379", "[::1]:3", "[::1]:2379"},
		"10.0.0.1:2379,10.0.0.2:1": {"10.0.0.1:2379", "10.0.0.2:1"},
	} {
		got, err := endpoints(hosts)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := endpoints("a,::1")
	require.ErrorIs(t, err, locker.ErrInvalid)
}

func TestOpen_refusesWhatItDoesNotKnowAndShowsNoSecrets(t *testing.T) { // House
	for _, url := range []string{
		"etcd://u:secret@localhost/#x", "etcd://u:secret@localhost/?prefix=x", "etcd://u:secret@localhost/?tls=yes",
		"etcd://u:secret@localhost/?tls_ca=x", "etcd://u:secret@localhost/?tls=false&tls_server_name=x",
		"etcd://u:secret@localhost/?tls=true&tls_ca=/nowhere", "etcd://u:secret@localhost/?tls=true&tls_cert=/nowhere",
		"etcd://u:secret@a,::1/", "etcd://u:secret@localhost/?min_ttl=x", "etcd://u:secret@localhost:99999", "etcd://:secret@localhost", "etcd://u:secret@localhost/?min_ttl=500ms", "etcd://u:secret@localhost/" + strings.Repeat("x", 513), "etcd://u:secret@localhost/%00",
	} {
		_, err := locker.Open(t.Context(), url)
		require.ErrorIs(t, err, locker.ErrInvalid, url)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A program can start while its etcd is down.
func TestOpen_doesNoIO(t *testing.T) {
	l, err := locker.Open(t.Context(), "etcd://localhost:1/app/")
	require.NoError(t, err)
	require.NoError(t, l.Close(context.Background()))
}

// A client with a user logs in first, which may take as long as the caller says.
func TestOpen_endsWithItsContext(t *testing.T) { // G5
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = locker.Open(ctx, "etcd://app:secret@"+silent.Addr().String()+"/app/")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(start), dialTimeout/2)
}

func TestOpen_takesThePathForThePrefix(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	c := connect(t, srv.Addr())
	for path, prefix := range map[string]string{"": DefaultPrefix, "/": DefaultPrefix, "/app": "app", "/app/": "app/", "/a%2Fb/": "a/b/"} {
		l := opened(t, srv.URL()+path, locker.Config{})
		k, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		seen, err := c.Get(t.Context(), Name(prefix, "k")+"/"+k.Owner())
		require.NoError(t, err)
		require.EqualValues(t, 1, seen.Count)
		require.NoError(t, k.Release(t.Context()))
	}
}

func TestNew_badSettingsAreInvalid(t *testing.T) {
	c := connect(t, "localhost:1")
	bad := func(s string) *string { return &s }
	for _, cfg := range []*Config{
		{Leases: -1}, {MinTTL: 1}, {MinTTL: -time.Second}, {MinTTL: 1500 * time.Millisecond}, {Leases: 65}, {Prefix: bad(strings.Repeat("x", 513))}, {Prefix: bad("\xff")}, {Prefix: bad("a\x00")},
	} {
		_, err := New(c, cfg)
		require.ErrorIs(t, err, locker.ErrInvalid)
		b, err := NewBackend(c, cfg)
		require.ErrorIs(t, err, locker.ErrInvalid)
		require.Nil(t, b)
	}
	_, err := New(nil, nil)
	require.ErrorIs(t, err, locker.ErrInvalid)
}
