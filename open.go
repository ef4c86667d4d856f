package locker

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// OpenConfig is what a program adds to the URL that it opens. A nil *OpenConfig
// stands for the defaults.
type OpenConfig struct {
	// Config is for the Locker. A ttl in the URL wins over its TTL.
	Config

	// Dial, if set, makes the connections to the store, encrypted ones included:
	// it has to return the bare connection. A store without connections has no
	// use for it. It must be safe for concurrent use, and end with its ctx.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Opener opens the Locker that a URL describes. u.Host is a list, "a:1,b:2", if the
// URL names several hosts. cfg carries what was given to OpenWith, and what was taken
// from the URL's query already; a parameter that the opener does not know is
// ErrInvalid. ctx bounds opening only. Errors must not contain the URL's user or
// password.
type Opener func(ctx context.Context, u *url.URL, cfg OpenConfig) (Locker, error)

// openers is the only package-level state: as in database/sql, a backend's package
// registers itself when it is imported.
var openers struct {
	sync.Mutex
	m map[string]Opener
}

// knownSchemes lets the error for a scheme whose package is not imported name it.
var knownSchemes = map[string]string{
	"mem":            "github.com/go-locker/locker/memlock",
	"etcd":           "github.com/go-locker/locker/etcdlock",
	"postgres":       "github.com/go-locker/locker/pglock",
	"postgresql":     "github.com/go-locker/locker/pglock",
	"redis":          "github.com/go-locker/locker/redislock",
	"rediss":         "github.com/go-locker/locker/redislock",
	"redis-cluster":  "github.com/go-locker/locker/redislock",
	"redis-sentinel": "github.com/go-locker/locker/redislock",
}

// Register makes a scheme known to Open. Backends call it from init; a second
// registration of a scheme panics.
func Register(scheme string, open Opener) {
	openers.Lock()
	defer openers.Unlock()
	if openers.m == nil {
		openers.m = make(map[string]Opener)
	}
	if _, ok := openers.m[scheme]; ok {
		panic("locker: scheme registered twice: " + scheme)
	}
	openers.m[scheme] = open
}

// Open returns the Locker that a URL describes: "mem://" or
// "redis://localhost:6379/0?prefix=app:&ttl=10s". The backend's package has to be
// imported for its side effect; it documents its URLs. The parameter ttl sets
// Config.TTL on every backend. ctx bounds opening only.
// Errors never show the URL's user or password.
func Open(ctx context.Context, rawURL string) (Locker, error) {
	return OpenWith(ctx, rawURL, nil)
}

// OpenWith is Open for a program that has something to add to the URL. A nil cfg adds
// nothing.
func OpenWith(ctx context.Context, rawURL string, cfg *OpenConfig) (Locker, error) {
	if cfg == nil {
		cfg = &OpenConfig{}
	}
	l, err := open(ctx, rawURL, *cfg)
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	return l, nil
}

func open(ctx context.Context, rawURL string, cfg OpenConfig) (Locker, error) {
	if isAddress(rawURL) {
		return nil, invalidf("the URL has no scheme: did you mean redis://%s?", rawURL)
	}
	u, err := parse(rawURL)
	if err != nil {
		// The error's text repeats the URL, with the password in it.
		return nil, invalidf("the URL cannot be parsed: it begins with a scheme such as redis://, " +
			"and special characters in user and password are percent-encoded")
	}
	if u.Scheme == "" {
		return nil, invalidf("the URL has no scheme, such as mem:// or redis://")
	}
	if u.Opaque != "" {
		// "redis:secret@host" would otherwise be the default server.
		return nil, invalidf("the URL has no // behind its scheme: %s://…", u.Scheme)
	}
	openers.Lock()
	opener, known := openers.m[u.Scheme]
	schemes := slices.Sorted(maps.Keys(openers.m))
	openers.Unlock()
	if known {
		if err := takeConfig(u, &cfg.Config); err != nil {
			return nil, err
		}
		return opener(ctx, u, cfg)
	}
	if pkg, ok := knownSchemes[u.Scheme]; ok {
		return nil, invalidf("scheme %q needs the import _ %q", u.Scheme, pkg)
	}
	return nil, invalidf("unknown scheme %q, known here: %s", u.Scheme, strings.Join(schemes, ", "))
}

// isAddress reports whether raw is a bare host:port. To url.Parse that is the scheme
// host, or nothing at all. What may hold a password is none.
func isAddress(raw string) bool {
	host, port, err := net.SplitHostPort(raw)
	if err != nil || host == "" || strings.ContainsAny(host, "/@?#") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// parse is url.Parse for URLs that may list several hosts, which it refuses:
// "scheme://user@a:1,b:2/path". Each has to be a host that it takes.
func parse(rawURL string) (*url.URL, error) {
	scheme, rest, found := strings.Cut(rawURL, "://")
	end := strings.IndexAny(rest+"/", "/?#")
	start := strings.LastIndexByte(rest[:end], '@') + 1
	if !found || !strings.Contains(rest[start:end], ",") {
		return url.Parse(rawURL)
	}
	before, after := scheme+"://"+rest[:start], rest[end:]
	var u *url.URL
	var hosts []string
	for host := range strings.SplitSeq(rest[start:end], ",") {
		var err error
		if u, err = url.Parse(before + host + after); err != nil {
			return nil, err
		}
		if u.Hostname() == "" {
			return nil, errors.New("an empty host in a list")
		}
		hosts = append(hosts, u.Host)
	}
	u.Host = strings.Join(hosts, ",")
	return u, nil
}

// takeConfig moves the parameters that every backend has from u to cfg.
func takeConfig(u *url.URL, cfg *Config) error {
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return invalidf("the URL's query cannot be parsed")
	}
	if q.Has("ttl") {
		if cfg.TTL, err = time.ParseDuration(q.Get("ttl")); err != nil {
			return invalidf("ttl=%q is not a duration such as 30s", q.Get("ttl"))
		}
		if err := validTTL(cfg.TTL); err != nil {
			return err
		}
		q.Del("ttl")
		u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // a plus is a space to some drivers only
	}
	return nil
}
