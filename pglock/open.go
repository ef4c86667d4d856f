package pglock

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-locker/locker"
)

func init() {
	locker.Register("postgres", open)
	locker.Register("postgresql", open)
}

// own is the beginning of the parameters that are ours.
const own = "locker_"

// open opens a Locker on a pool of its own.
func open(ctx context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
	if u.Fragment != "" {
		// Most likely a password with a "#" that was not escaped, cut in two.
		return nil, invalidf("the URL has a fragment")
	}
	query := u.Query()
	p := parameters{}
	for name := range query {
		if strings.HasPrefix(name, own) {
			p[name] = query.Get(name)
			query.Del(name)
		}
	}
	bare := *u
	bare.RawQuery = encode(query)
	chosen := p.take("mode")
	mode, known := modes[chosen]
	if !known {
		wrong := "unknown"
		if chosen == "" {
			wrong = "missing"
		}
		return nil, invalidf("the URL's query: locker_mode is " + wrong + ": choose advisory (a session holds the locks: it ends, and they are free), " +
			"lease (rows of a table: through any pooler) or row (SELECT FOR UPDATE: a connection for each lock)")
	}
	openOn, err := mode(p, cfg.Config)
	if err != nil {
		return nil, err
	}
	if len(p) > 0 {
		return nil, invalidf("the URL's query: unknown here: %s", strings.Join(slices.Sorted(maps.Keys(p)), ", "))
	}
	poolConfig, err := pgxpool.ParseConfig(bare.String())
	if err != nil {
		return nil, unread(bare, query)
	}
	if cfg.Dial != nil {
		poolConfig.ConnConfig.DialFunc = cfg.Dial
	}
	if !query.Has("connect_timeout") {
		poolConfig.ConnConfig.ConnectTimeout = connectBound // the driver has two minutes
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, failed(err)
	}
	l, err := openOn(ctx, pool)
	if err != nil {
		go pool.Close() // which waits for a connection that is being made
		return nil, err
	}
	return l, nil
}

// unread is the error for a URL that the driver does not take. Its text may quote any
// piece of it, and so of a password that was not escaped.
func unread(bare url.URL, query url.Values) error {
	for name := range query {
		without := maps.Clone(query)
		without.Del(name)
		bare.RawQuery = encode(without)
		if _, err := pgxpool.ParseConfig(bare.String()); err == nil && known(name) {
			return invalidf("the URL's query: %s is malformed", name)
		}
	}
	return invalidf("the URL is none that the driver takes: it is like postgres://user@host:5432/database?sslmode=disable")
}

// encode writes a query for the driver, to whom a plus is no space.
func encode(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

// known reports whether the name of a parameter can be shown: it is no piece of a password.
func known(name string) bool {
	return strings.HasPrefix(name, "ssl") || strings.HasPrefix(name, "pool_") ||
		slices.Contains([]string{"connect_timeout", "target_session_attrs", "default_query_exec_mode", "statement_cache_capacity"}, name)
}

// parameters are those of ours that nobody has taken yet.
type parameters map[string]string

func (p parameters) take(name string) string {
	defer delete(p, own+name)
	return p[own+name]
}

func (p parameters) number(name string) (n int, err error) {
	if text := p.take(name); text != "" {
		if n, err = strconv.Atoi(text); err != nil {
			return 0, invalidf("the URL's query: locker_%s is a number", name)
		}
	}
	return n, nil
}

func (p parameters) duration(name string) (d time.Duration, err error) {
	if text := p.take(name); text != "" {
		if d, err = time.ParseDuration(text); err != nil {
			return 0, invalidf("the URL's query: locker_%s is a duration such as 30s", name)
		}
	}
	return d, nil
}

func (p parameters) flag(name string) (on bool, err error) {
	if text := p.take(name); text != "" {
		if on, err = strconv.ParseBool(text); err != nil {
			return false, invalidf("the URL's query: locker_%s is true or false", name)
		}
	}
	return on, nil
}

// address reads "host:port"; host is empty if it is not there.
func (p parameters) address(name string) (host string, port uint16, err error) {
	text := p.take(name)
	if text == "" {
		return "", 0, nil
	}
	host, digits, err := net.SplitHostPort(text)
	n, errPort := strconv.ParseUint(digits, 10, 16)
	if err != nil || errPort != nil || host == "" {
		return "", 0, invalidf("the URL's query: locker_%s is host:port", name)
	}
	return host, uint16(n), nil
}

// identifier reads "name" or "schema.name".
func (p parameters) identifier(name string) pgx.Identifier {
	if text := p.take(name); text != "" {
		return strings.SplitN(text, ".", 2)
	}
	return nil
}

func (p parameters) clockToken() (bool, error) {
	switch p.take("token") {
	case "", "sequence":
		return false, nil
	case "clock":
		return true, nil
	}
	return false, invalidf("the URL's query: locker_token is sequence or clock")
}

// modes read their parameters, and return what makes the Locker, which closes the pool.
var modes = map[string]func(parameters, locker.Config) (func(context.Context, *pgxpool.Pool) (locker.Locker, error), error){
	"advisory": openAdvisory,
	"lease":    openLease,
	"row":      openRow,
}

func openAdvisory(p parameters, cfg locker.Config) (func(context.Context, *pgxpool.Pool) (locker.Locker, error), error) {
	c := &Config{Config: cfg, Namespace: p.take("namespace"), Sequence: p.identifier("sequence")}
	var err [6]error
	c.Create, err[0] = p.flag("create")
	c.ClockToken, err[1] = p.clockToken()
	c.Sessions, err[2] = p.number("sessions")
	c.MaxLocks, err[3] = p.number("max_locks")
	c.BlockedWaiters, err[4] = p.flag("blocked_waiters")
	c.RestartGrace, err[5] = p.duration("restart_grace")
	for _, err := range err {
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, pool *pgxpool.Pool) (locker.Locker, error) {
		return newLocker(ctx, pool, c, pool.Close)
	}, nil
}

func openLease(p parameters, cfg locker.Config) (func(context.Context, *pgxpool.Pool) (locker.Locker, error), error) {
	c := &LeaseConfig{Config: cfg, Table: p.identifier("table")}
	create, err := p.flag("create")
	if err != nil {
		return nil, err
	}
	c.Create = create
	host, port, err := p.address("listen")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, pool *pgxpool.Pool) (locker.Locker, error) {
		c.Listen = pool
		if host != "" {
			direct, err := at(ctx, pool, host, port)
			if err != nil {
				return nil, err
			}
			defer direct.Close() // its settings are what is needed
			c.Listen = direct
		}
		l, err := newLeaseLocker(ctx, pool, c, pool.Close)
		if errors.Is(err, errPooler) && host == "" {
			c.Listen = nil // so there are none
			return newLeaseLocker(ctx, pool, c, pool.Close)
		}
		return l, err
	}, nil
}

// at is a pool with the settings of another one, but for the server's address.
func at(ctx context.Context, pool *pgxpool.Pool, host string, port uint16) (*pgxpool.Pool, error) {
	cfg := pool.Config()
	conn := cfg.ConnConfig
	// Of the driver's further attempts, those at the first server are the ones with and
	// without TLS; the others are at other servers.
	var same []*pgconn.FallbackConfig
	for _, f := range conn.Fallbacks {
		if f.Host == conn.Host && f.Port == conn.Port {
			same = append(same, &pgconn.FallbackConfig{Host: host, Port: port, TLSConfig: named(f.TLSConfig, host)})
		}
	}
	conn.Host, conn.Port, conn.TLSConfig, conn.Fallbacks = host, port, named(conn.TLSConfig, host), same
	return pgxpool.NewWithConfig(ctx, cfg)
}

// named is a TLS configuration, if there is one, for a server of that name.
func named(cfg *tls.Config, host string) *tls.Config {
	if cfg == nil {
		return nil
	}
	cfg = cfg.Clone()
	cfg.ServerName = host
	return cfg
}

func openRow(p parameters, cfg locker.Config) (func(context.Context, *pgxpool.Pool) (locker.Locker, error), error) {
	c := &RowConfig{Config: cfg, Table: p.identifier("table"), Sequence: p.identifier("sequence")}
	var err error
	if c.Create, err = p.flag("create"); err != nil {
		return nil, err
	}
	if c.ClockToken, err = p.clockToken(); err != nil {
		return nil, err
	}
	if c.RestartGrace, err = p.duration("restart_grace"); err != nil {
		return nil, err
	}
	return func(ctx context.Context, pool *pgxpool.Pool) (locker.Locker, error) {
		return newRowLocker(ctx, pool, c, pool.Close)
	}, nil
}
