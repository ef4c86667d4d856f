package etcdlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/go-locker/locker"
)

func init() { locker.Register("etcd", open) }

const (
	defaultPort = "2379"

	// dialTimeout bounds what a client with a user does first: to log in.
	dialTimeout = 5 * time.Second

	// A connection over which nothing comes is tried after quietAfter, the least that gRPC
	// allows, and given up after answerWithin.
	quietAfter   = 10 * time.Second
	answerWithin = 2 * time.Second
)

// open opens a Locker on a client of its own. Without a user it does no I/O; with one it
// blocks until the client has logged in, or ctx ends.
func open(ctx context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
	if u.Fragment != "" {
		// Most likely a password with a "#" that was not escaped, cut in two.
		return nil, invalidf("the URL has a fragment")
	}
	own := &Config{Config: cfg.Config}
	query := u.Query()
	pick := func(name string) string {
		defer query.Del(name)
		return query.Get(name)
	}
	security, err := encryption(pick)
	if err != nil {
		return nil, err
	}
	if text := pick("min_ttl"); text != "" {
		if own.MinTTL, err = time.ParseDuration(text); err != nil {
			return nil, invalidf("the URL's query: min_ttl is a duration such as 1s")
		}
	}
	if len(query) > 0 {
		return nil, invalidf("the URL's query: a parameter is unknown; known are ttl, %s", parameters)
	}
	if password, _ := u.User.Password(); (u.User.Username() == "") != (password == "") {
		return nil, invalidf("the URL has a user or a password, and not both: its client would not log in")
	}
	endpoints, err := endpoints(u.Host)
	if err != nil {
		return nil, err
	}
	if prefix := strings.TrimPrefix(u.Path, "/"); prefix != "" {
		own.Prefix = &prefix
	}
	if _, err := own.check(); err != nil {
		return nil, err // before a client with a user logs in
	}
	config := clientv3.Config{Endpoints: endpoints, TLS: security, Username: u.User.Username()}
	config.Password, _ = u.User.Password()
	return openWith(ctx, config, cfg.Dial, own)
}

// openWith opens a Locker on a client of its own, whose connections dial makes; nil is the
// usual way.
func openWith(ctx context.Context, config clientv3.Config, dial dialer, cfg *Config) (locker.Locker, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	cs := &conns{dialer: dial, live: make(map[*conn]struct{})}
	config.DialTimeout, config.DialKeepAliveTime, config.DialKeepAliveTimeout = dialTimeout, quietAfter, answerWithin
	config.DialOptions = append(config.DialOptions, grpc.WithContextDialer(cs.dial))
	config.MaxUnaryRetries = 1 // the Locker repeats what is worth it, and has the error to tell of
	config.Logger = zap.NewNop()
	life, end := context.WithCancel(context.Background())
	config.Context = life
	alive := context.AfterFunc(ctx, end)
	client, err := clientv3.New(config)
	if !alive() && err == nil {
		err = client.Close()
	}
	if err = cmp.Or(ctx.Err(), err); err != nil {
		end()
		return nil, failed(err)
	}
	b, err := newBackend(client, cfg)
	if err != nil {
		end()
		_ = client.Close()
		return nil, err
	}
	b.owned, b.silent = func() error { defer end(); return client.Close() }, cs.drop
	l, err := locker.New(b, &cfg.Config)
	if err != nil {
		_ = b.Close(context.Background())
		return nil, err
	}
	return l, nil
}

// parameters are those of the URL's query.
const parameters = "min_ttl, tls, tls_ca, tls_cert, tls_key, tls_server_name"

// encryption reads the parameters about TLS, with pick. It is nil for none.
func encryption(pick func(string) string) (*tls.Config, error) {
	on, ca, cert, key, name := pick("tls"), pick("tls_ca"), pick("tls_cert"), pick("tls_key"), pick("tls_server_name")
	switch {
	case on == "true":
	case on != "" && on != "false":
		return nil, invalidf("the URL's query: tls is true or false")
	case ca+cert+key+name != "":
		return nil, invalidf("the URL's query: tls_ca, tls_cert, tls_key and tls_server_name without tls=true")
	default:
		return nil, nil //nolint:nilnil // no encryption is no error
	}
	cfg := &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, invalidf("the URL's query: tls_ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalidf("the URL's query: tls_ca has no certificate")
		}
	}
	if cert+key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, invalidf("the URL's query: tls_cert and tls_key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// endpoints are the members of a URL, each of them a name or an address.
func endpoints(hosts string) ([]string, error) {
	var found []string
	for host := range strings.SplitSeq(hosts, ",") {
		one := url.URL{Host: host}
		name, port := one.Hostname(), one.Port()
		if strings.Contains(name, ":") && host[0] != '[' {
			return nil, invalidf("the URL's hosts: each is a name, or an address, and may have a port")
		}
		if name == "" {
			name = "localhost"
		}
		if port == "" {
			port = defaultPort
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, invalidf("the URL's hosts: %s is no port", port)
		}
		found = append(found, net.JoinHostPort(name, port))
	}
	return found, nil
}
