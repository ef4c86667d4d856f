package redislock

import (
	"cmp"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-locker/locker"
)

func init() {
	locker.Register("redis", opener(newSingle))
	locker.Register("rediss", opener(newSingle))
	locker.Register("redis-cluster", opener(newCluster))
	locker.Register("redis-sentinel", opener(newFailover))
}

// dialer makes a connection, without encryption.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// opener opens a Locker on a client of its own, which connect makes of the URL, and of
// what is left of its query. It does no I/O: the first acquire connects, so a program
// can start while its Redis is down.
func opener(connect func(u *url.URL, query url.Values, dial dialer) (redis.UniversalClient, error)) locker.Opener {
	return func(_ context.Context, u *url.URL, cfg locker.OpenConfig) (locker.Locker, error) {
		if u.Fragment != "" {
			// Most likely a password with a "#" that was not escaped, cut in two.
			return nil, invalidf("the URL has a fragment")
		}
		query := u.Query()
		own := &Config{Config: cfg.Config, Prefix: pick(query, "prefix")}
		if err := pickReplicas(query, own); err != nil {
			return nil, err
		}
		client, err := connect(u, query, cfg.Dial)
		if err != nil {
			return nil, err
		}
		l, err := openWith(client, own)
		if err != nil {
			_ = client.Close() // it has no connection yet
			return nil, err
		}
		return l, nil
	}
}

func openWith(client redis.UniversalClient, cfg *Config) (locker.Locker, error) {
	b, err := newBackend(client, cfg)
	if err != nil {
		return nil, err
	}
	b.owned = client
	return locker.New(b, &cfg.Config)
}

// pick takes a parameter out of the query.
func pick(query url.Values, name string) string {
	defer query.Del(name)
	return query.Get(name)
}

// pickReplicas takes the parameters about replicas out of the query.
func pickReplicas(query url.Values, cfg *Config) (err error) {
	if text := pick(query, "replicas"); text != "" {
		if cfg.Replicas, err = strconv.Atoi(text); err != nil {
			return invalidf("the URL's query: replicas is a number")
		}
	}
	if text := pick(query, "replica_timeout"); text != "" {
		if cfg.ReplicaTimeout, err = time.ParseDuration(text); err != nil {
			return invalidf("the URL's query: replica_timeout is a duration such as 500ms")
		}
	}
	return nil
}

func newSingle(u *url.URL, query url.Values, dial dialer) (redis.UniversalClient, error) {
	if strings.Contains(u.Host, ",") {
		return nil, invalidf("the URL has several hosts: the nodes of a cluster are redis-cluster://, sentinels redis-sentinel://")
	}
	opts, err := options(u, query)
	if err != nil {
		return nil, err
	}
	opts.Dialer = encrypted(dial, opts.TLSConfig)
	return redis.NewClient(opts), nil
}

func newCluster(u *url.URL, query url.Values, dial dialer) (redis.UniversalClient, error) {
	opts, err := several(u, "6379", query, dial)
	if err != nil {
		return nil, err
	}
	if opts.DB != 0 {
		return nil, invalidf("the URL's path: a cluster has one database, 0")
	}
	return redis.NewClusterClient(opts.Cluster()), nil
}

func newFailover(u *url.URL, query url.Values, dial dialer) (redis.UniversalClient, error) {
	master, db, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if master == "" {
		return nil, invalidf("the URL's path: it has to be the master's name, or that and the number of a database")
	}
	username, password := pick(query, "sentinel_username"), pick(query, "sentinel_password")
	bare := *u
	bare.Path, bare.RawPath = "/"+db, ""
	opts, err := several(&bare, "26379", query, dial)
	if err != nil {
		return nil, err
	}
	opts.MasterName, opts.SentinelUsername, opts.SentinelPassword = master, username, password
	return redis.NewFailoverClient(opts.Failover()), nil
}

// patience is how long a client of several servers waits for a dial, or an answer,
// unless the URL sets another time: a server that hangs, and is replaced by another
// meanwhile, is not to hold up locks for much longer.
const patience = time.Second

// several reads the URL of several servers with a default port.
func several(u *url.URL, port string, query url.Values, dial dialer) (*redis.UniversalOptions, error) {
	var addrs []string
	hosts := strings.Split(u.Host, ",")
	for _, host := range hosts {
		one := url.URL{Host: host}
		name := one.Hostname()
		if strings.Contains(name, ":") && host[0] != '[' {
			return nil, invalidf("the URL's hosts: each is a name, or an address, and may have a port")
		}
		addrs = append(addrs, net.JoinHostPort(cmp.Or(name, "localhost"), cmp.Or(one.Port(), port)))
	}
	// The driver reads the rest as the URL of one server.
	bare := *u
	bare.Host = hosts[0]
	switch pick(query, "tls") {
	case "", "false":
		bare.Scheme = "redis"
	case "true":
		bare.Scheme = "rediss"
	default:
		return nil, invalidf("the URL's query: tls is true or false")
	}
	named := query.Has("tls_server_name")
	o, err := options(&bare, query)
	if err != nil {
		return nil, err
	}
	if o.TLSConfig != nil && !named {
		o.TLSConfig.ServerName = "" // each server has the one that it is dialled by
	}
	if o.MaxRetries == 0 {
		// A sentinel that hangs is given up after its last retry, for another one. By
		// then the attempt is over, and the next one would begin with it again.
		o.MaxRetries = -1
	}
	return &redis.UniversalOptions{
		Addrs:                    addrs,
		ClientName:               o.ClientName,
		DB:                       o.DB,
		Dialer:                   encrypted(dial, o.TLSConfig),
		Protocol:                 o.Protocol,
		Username:                 o.Username,
		Password:                 o.Password,
		MaxRetries:               o.MaxRetries,
		MinRetryBackoff:          o.MinRetryBackoff,
		MaxRetryBackoff:          o.MaxRetryBackoff,
		DialTimeout:              cmp.Or(o.DialTimeout, patience),
		DialerRetries:            o.DialerRetries,
		ReadTimeout:              cmp.Or(o.ReadTimeout, patience),
		WriteTimeout:             cmp.Or(o.WriteTimeout, patience),
		ContextTimeoutEnabled:    o.ContextTimeoutEnabled,
		PipelineReadBufferSize:   o.PipelineReadBufferSize,
		PipelineWriteBufferSize:  o.PipelineWriteBufferSize,
		PipelinePoolSize:         o.PipelinePoolSize,
		PoolFIFO:                 o.PoolFIFO,
		PoolSize:                 o.PoolSize,
		MaxConcurrentDials:       o.MaxConcurrentDials,
		PoolTimeout:              o.PoolTimeout,
		MinIdleConns:             o.MinIdleConns,
		MaxIdleConns:             o.MaxIdleConns,
		MaxActiveConns:           o.MaxActiveConns,
		ConnMaxIdleTime:          o.ConnMaxIdleTime,
		ConnMaxLifetime:          o.ConnMaxLifetime,
		ConnMaxLifetimeJitter:    o.ConnMaxLifetimeJitter,
		TLSConfig:                o.TLSConfig,
		DisableIdentity:          o.DisableIdentity,
		MaintNotificationsConfig: o.MaintNotificationsConfig,
	}, nil
}

// options reads the URL of one server.
func options(u *url.URL, query url.Values) (*redis.Options, error) {
	if query.Has("skip_verify") && u.Scheme != "rediss" {
		return nil, invalidf("the URL's query: skip_verify without TLS")
	}
	serverName := pick(query, "tls_server_name")
	bare := *u
	bare.RawQuery = query.Encode()
	opts, err := redis.ParseURL(bare.String())
	if err != nil {
		return nil, unread(bare, query, u.Query())
	}
	if serverName != "" {
		if opts.TLSConfig == nil {
			return nil, invalidf("the URL's query: tls_server_name without TLS")
		}
		opts.TLSConfig.ServerName = serverName
	}
	// A call that its context ended does not go on until a time-out of its own.
	opts.ContextTimeoutEnabled = true
	// The Locker repeats what is worth it, with back-off; the driver's five dials
	// inside one command would only hold up its answer.
	opts.DialerRetries = 1
	// These spare each new connection requests that locks have no use for.
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opts, nil
}

// driverParameters are those that redis.ParseURL knows.
var driverParameters = []string{
	"db", "protocol", "client_name", "max_retries", "min_retry_backoff", "max_retry_backoff",
	"dial_timeout", "read_timeout", "write_timeout",
	"pool_fifo", "pool_size", "pool_timeout", "min_idle_conns", "max_idle_conns", "max_active_conns", "max_concurrent_dials",
	"pipeline_pool_size", "pipeline_read_buffer_size", "pipeline_write_buffer_size",
	"conn_max_idle_time", "idle_timeout", "conn_max_lifetime", "max_conn_age", "conn_max_lifetime_jitter", "skip_verify",
}

// unread is the error for a URL that the driver does not take: bare, and the query
// that is left of all. The driver's text may quote any piece of the URL, and so of a
// password that was not escaped.
func unread(bare url.URL, query, all url.Values) error {
	refused := func(query url.Values) bool {
		bare.RawQuery = query.Encode()
		_, err := redis.ParseURL(bare.String())
		return err != nil
	}
	if refused(nil) {
		return invalidf("the URL's path: it has to be the number of a database")
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch known := slices.Contains(driverParameters, name); {
		case !known:
			unknown = append(unknown, name)
		case refused(url.Values{name: query[name]}):
			return invalidf("the URL's query: %s is malformed", name)
		}
	}
	switch {
	case len(unknown) == 0:
		return invalidf("the URL's query: two parameters exclude each other")
	case len(unknown) == 1 && !holdsSecret(all):
		return invalidf("the URL's query: unknown parameter %q", unknown[0])
	}
	return invalidf("the URL's query: a parameter is unknown; known are prefix, ttl, replicas, replica_timeout, tls_server_name, "+
		"with several hosts tls, with sentinels sentinel_username and sentinel_password, and %s", strings.Join(driverParameters, ", "))
}

// holdsSecret reports whether the name of the one unknown parameter may be a piece of
// a password that was not escaped: of the URL's own, cut at a "?", for then the "@"
// behind it is in the query too; or of the sentinels', cut at a "&". The secret of an
// unknown parameter that is cut in this way makes a second unknown one.
func holdsSecret(query url.Values) bool {
	for name, values := range query {
		if strings.Contains(name+strings.Join(values, ""), "@") {
			return true
		}
	}
	return query.Has("sentinel_password")
}

// encrypted does over dial what the driver does over a dialer of its own: to it, a
// dialer that was given has to bring the encryption. Without dial it is nil, which
// stands for the driver's.
func encrypted(dial dialer, cfg *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	if dial == nil || cfg == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		bare, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		cfg := cfg
		if cfg.ServerName == "" {
			cfg = cfg.Clone()
			cfg.ServerName, _, _ = net.SplitHostPort(address)
		}
		conn := tls.Client(bare, cfg)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = bare.Close()
			return nil, err
		}
		return conn, nil
	}
}
