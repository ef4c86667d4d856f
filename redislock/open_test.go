package redislock

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
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
		"redis://user:hunter2@host/0?prefx=app:":               `unknown parameter "prefx"`,
		"redis://user:hunter2@host/0?pool_size=hunter2":        "pool_size is malformed",
		"redis://user:hunter2@host/0?read_timeout=hunter2":     "read_timeout is malformed",
		"redis://user:hunter2@host/zero":                       "path",
		"redis://user:hunter2@host/0/1":                        "path",
		"redis://:half@hunter2/0/x@host:6379/0":                "path",
		"rediss://user:hunter2@host/0?addr=other":              `unknown parameter "addr"`,
		"redis://user:hunter2@host/0?prefix=%ff":               "UTF-8",
		"redis://user:hunter2@host/0?prefix=a%00b":             "NUL",
		"redis://user:hunter2@host/0?ttl=1ns":                  "TTL",
		"redis://user:6379#hunter2@host/0":                     "fragment",
		"redis://us er:hunter2@host/0":                         "parsed",
		"redis://user:hunter2@a,b/0":                           "several hosts",
		"redis://user:hunter2@host/0?tls=true":                 `unknown parameter "tls"`,
		"redis://host/0?tls_server_name=hunter2":               "without TLS",
		"redis://host/0?sentinel_password=hunter2":             "known are prefix",
		"redis://host/0?skip_verify=true":                      "skip_verify without TLS",
		"redis://host/0?db=hunter2&prefx=x":                    "db is malformed",
		"redis://host/0?idle_timeout=1s&conn_max_idle_time=1s": "exclude each other",

		"redis-cluster://user:hunter2@a,b/1":                "one database",
		"redis-cluster://user:hunter2@a,b?db=1":             "one database",
		"redis-cluster://user:hunter2@a,b/x":                "path",
		"redis-cluster://user:hunter2@a,b?tls=hunter2":      "tls is true or false",
		"redis-cluster://user:hunter2@a:hunter2:2":          "hosts",
		"redis-cluster://user:x@a:1:2":                      "hosts",
		"redis-cluster://user:hunter2@a,b?addr=c:1":         "query",
		"redis-cluster://user:hunter2@a,b?read_only=true":   `unknown parameter "read_only"`,
		"redis-cluster://user:hunter2@a?prefix=a%00b":       "NUL",
		"redis-cluster://a?sentinel_password=hunter2":       "query",
		"redis-cluster://a#hunter2":                         "fragment",
		"redis-sentinel://user:hunter2@a,b":                 "master's name",
		"redis-sentinel://user:hunter2@a,b/":                "master's name",
		"redis-sentinel://user:hunter2@a,b/main/x":          "path",
		"redis-sentinel://user:hunter2@a,b/main/1/2":        "path",
		"redis-sentinel://a/m?sentinel_pasword=hunter2":     `unknown parameter "sentinel_pasword"`,
		"redis-sentinel://a/m?replica_only=true":            "query",
		"redis-sentinel://a/m?master_name=n":                "query",
		"redis-sentinel://a/m?tls_server_name=x&pw=hunter2": `unknown parameter "pw"`,

		// Passwords that were not escaped, and so cut into parameters.
		"redis://user:6379?hunter2@host/0":                       "known are prefix",
		"redis://user:6379?hunter2&@host/0":                      "known are prefix",
		"redis://user:6379?hunter2&prefix=x@host/0":              "known are prefix",
		"redis://user:6379?hunter2&prefix=x@host/0?ttl=9s":       "known are prefix",
		"redis://host/0?pw=x&hunter2":                            "known are prefix",
		"redis-cluster://user:1?hunter2=x@a:1,b:2":               "known are prefix",
		"redis-sentinel://a/m?sentinel_password=x&hunter2":       "known are prefix",
		"redis-sentinel://a/m?sentinel_password=x&hunter2=&db=1": "known are prefix",
	} {
		l, err := locker.Open(t.Context(), raw)
		require.ErrorIs(t, err, locker.ErrInvalid, raw)
		require.Nil(t, l)
		require.ErrorContains(t, err, want, raw)
		require.NotContains(t, err.Error(), "hunter2", raw)
	}
}

func TestOpen_namesTheParametersThatTheDriverKnows(t *testing.T) {
	for _, name := range driverParameters {
		_, err := redis.ParseURL("rediss://host?" + name + "=1")
		require.NoError(t, err, name)
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

func TestOpen_readsTheURLsOfSeveralServers(t *testing.T) {
	read := func(raw string, connect func(*url.URL, url.Values, dialer) (redis.UniversalClient, error)) redis.UniversalClient {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		if hosts := u.Query().Get("hosts"); hosts != "" {
			u.Host = hosts // as locker.Open does it
		}
		query := u.Query()
		query.Del("hosts")
		rdb, err := connect(u, query, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	o := read("redis-cluster://us%40er:pass@x?hosts=a,b:2,[::1],[::1]:4&pool_size=7&tls=true&skip_verify=true&read_timeout=3s", newCluster).(*redis.ClusterClient).Options()
	require.Equal(t, []string{"a:6379", "b:2", "[::1]:6379", "[::1]:4"}, o.Addrs)
	require.Equal(t, []any{"us@er", "pass", 7, 3 * time.Second}, []any{o.Username, o.Password, o.PoolSize, o.ReadTimeout})
	require.True(t, o.TLSConfig.InsecureSkipVerify)
	require.Empty(t, o.TLSConfig.ServerName)
	require.True(t, o.ContextTimeoutEnabled)
	require.True(t, o.DisableIdentity)
	require.Equal(t, 1, o.DialerRetries)

	o = read("redis-cluster://x/0?hosts=a&tls=true&tls_server_name=redis.example", newCluster).(*redis.ClusterClient).Options()
	require.Equal(t, "redis.example", o.TLSConfig.ServerName)
	require.False(t, o.TLSConfig.InsecureSkipVerify)
	require.Equal(t, patience, o.ReadTimeout)
	require.Nil(t, read("redis-cluster://x?tls=false", newCluster).(*redis.ClusterClient).Options().TLSConfig)

	f := read("redis-sentinel://user:pass@x/main/3?hosts=a,b&sentinel_username=su&sentinel_password=sp", newFailover).(*redis.Client).Options()
	require.Equal(t, []any{"user", "pass", 3, patience}, []any{f.Username, f.Password, f.DB, f.ReadTimeout})
	require.True(t, f.ContextTimeoutEnabled)
}

// startTLS starts a Redis that speaks TLS, with a certificate of its own making, at
// the address that is returned.
func startTLS(t *testing.T, settings ...string) (srv *testenv.Redis, addr string) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"redis.example"},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: secret},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	require.NoError(t, l.Close())
	_, port, _ := net.SplitHostPort(addr)
	return startServer(t, append(settings, "tls-port "+port, "tls-auth-clients no",
		"tls-cert-file "+filepath.Join(dir, "cert.pem"), "tls-key-file "+filepath.Join(dir, "key.pem"),
		"tls-ca-cert-file "+filepath.Join(dir, "cert.pem"))...), addr
}

func TestOpen_speaksTLSOverTheCallersDialer(t *testing.T) {
	srv, addr := startTLS(t, "cluster-enabled yes", "tls-cluster yes")
	addSlots(t, connect(t, srv))
	for raw, fails := range map[string]bool{
		"rediss://" + addr + "/0?skip_verify=true":            false,
		"redis-cluster://" + addr + "?tls=true&skip_verify=1": false,
		"rediss://" + addr:                      true, // nobody vouches for the certificate
		"redis-cluster://" + addr + "?tls=true": true,
		"redis-cluster://" + addr + "?tls=true&tls_server_name=redis.example": true,
	} {
		for _, own := range []bool{false, true} {
			w := &wire{}
			cfg := &locker.OpenConfig{}
			if own {
				cfg.Dial = w.dial
			}
			l, err := locker.OpenWith(t.Context(), raw, cfg)
			require.NoError(t, err)
			k, err := l.TryAcquire(t.Context(), "k")
			if fails {
				require.ErrorContains(t, err, "certificate", raw)
			} else {
				require.NoError(t, err, raw)
				require.NoError(t, k.Release(t.Context()))
			}
			require.Equal(t, own, w.dials.Load() > 0, "the dialer that was given is used")
			require.NoError(t, l.Close(context.Background()))
			require.Zero(t, w.open())
		}
	}
}
