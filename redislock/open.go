package redislock

import (
	"context"
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
func open(_ context.Context, u *url.URL, cfg locker.Config) (locker.Locker, error) {
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

	client := redis.NewClient(opts)
	l, err := openWith(client, prefix, &cfg)
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
