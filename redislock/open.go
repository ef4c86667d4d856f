package redislock

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-locker/locker"
)

func init() {
	locker.Register("redis", open)
	locker.Register("rediss", open)
}

// open implements locker.Opener. It does no I/O: the first acquire connects, so a
// program can start while its Redis is down.
func open(_ context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
	if u.Fragment != "" {
		// Most likely a password with a "#" that was not escaped, cut in two.
		return nil, invalidf("the URL has a fragment")
	}
	query := u.Query()
	prefix := query.Get("prefix")
	query.Del("prefix")
	bare := *u
	bare.RawQuery = query.Encode()
	opts, err := redis.ParseURL(bare.String())
	if err != nil {
		// Its text may quote any piece of the URL, and so of a password that was
		// not escaped. Only the place is told.
		where := "query: a parameter is unknown or malformed"
		bare.RawQuery = ""
		if _, err := redis.ParseURL(bare.String()); err != nil {
			where = "path: it has to be the number of a database"
		}
		return nil, invalidf("the URL's %s", where)
	}
	// A call that its context ended does not go on until a time-out of its own.
	opts.ContextTimeoutEnabled = true
	// The Locker repeats what is worth it, with back-off; the driver's five dials
	// inside one command would only hold up its answer.
	opts.DialerRetries = 1
	// Spares each new connection a request that plain Redis does not know.
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

	if cfg.Dial != nil {
		opts.Dialer = encrypted(cfg.Dial, opts.TLSConfig)
	}

	client := redis.NewClient(opts)
	l, err := openWith(client, prefix, &cfg.Config)
	if err != nil {
		_ = client.Close() // it has no connection yet
		return nil, err
	}
	return l, nil
}

func openWith(client *redis.Client, prefix string, cfg *locker.Config) (locker.Locker, error) {
	b, err := newBackend(client, prefix)
	if err != nil {
		return nil, err
	}
	b.owned = client
	return locker.New(b, cfg)
}

// encrypted does over dial what the driver does over a dialer of its own: to it, a
// dialer that was given has to bring the encryption.
func encrypted(dial func(context.Context, string, string) (net.Conn, error), cfg *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	if cfg == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		bare, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(bare, cfg)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = bare.Close()
			return nil, err
		}
		return conn, nil
	}
}
