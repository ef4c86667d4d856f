package redislock_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/redislock"
)

// One server is judged by all cases. Every other deployment is judged by those that
// could end differently there, because the rest would cost minutes and prove nothing.
// To servers another process is another client, and those are in all runs.

func TestConformance(t *testing.T) {
	(&store{prefix: "conformance-" + rand.Text() + ":", connect: single, start: func(ctx context.Context) (servers, error) {
		srv, err := testenv.AnyRedis(ctx)
		if err != nil {
			return servers{}, err
		}
		s := servers{url: srv.URL(), stop: srv.Stop}
		if srv.PID() != 0 { // it is ours to break
			s.breakable = breakable(srv.InCharge(), false)
		}
		return s, nil
	}}).run(t)
}

// Behind Sentinel there is one server, until something breaks. Left out is how locks
// are given back in an outage: a release takes the way of a grant.
func TestConformance_sentinel(t *testing.T) {
	(&store{connect: failover, only: of("GHW", uses(network|broken)), start: func(ctx context.Context) (servers, error) {
		srv, err := testenv.StartSentinel(ctx, &testenv.SentinelConfig{Redis: durable})
		if err != nil {
			return servers{}, err
		}
		return servers{url: srv.URL(), stop: srv.Stop, breakable: breakable(srv.InCharge(), true)}, nil
	}}).run(t)
}

// The keys of a cluster are spread over its nodes. The user has the rights that the
// package's documentation names, and no others.
func TestConformance_cluster(t *testing.T) { // C83, C85
	(&store{prefix: "app:", connect: cluster, only: without(processes | broken), start: func(ctx context.Context) (servers, error) {
		srv, err := testenv.StartCluster(ctx, nil)
		if err != nil {
			return servers{}, err
		}
		s := servers{url: srv.URL(), admin: srv.URL(), stop: srv.Stop}
		rights := append(documentedRights(t), "+cluster|slots", "+scan") // for the client, and for List
		for _, node := range srv.Nodes() {
			if _, err := node.AddUser(ctx, username, password, rights...); err != nil {
				return servers{}, errors.Join(err, srv.Stop())
			}
		}
		s.url = strings.Replace(s.url, "://", "://"+username+":"+password+"@", 1)
		return s, nil
	}}).run(t)
}

const username, password = "locker", "secret"

// Here they are in one slot, so that the node that breaks is theirs.
func TestConformance_clusterNode(t *testing.T) {
	const tag = "{tag}"
	(&store{prefix: tag, connect: cluster, only: uses(broken), start: func(ctx context.Context) (servers, error) {
		srv, err := testenv.StartCluster(ctx, &testenv.ClusterConfig{Redis: durable})
		if err != nil {
			return servers{}, err
		}
		return servers{url: srv.URL(), stop: srv.Stop, breakable: breakable(srv.InCharge(tag), true)}, nil
	}}).run(t)
}

// A replica that has to acknowledge has a part in what is written: grants, renewals
// and extensions. Left out are grants of a millisecond, which a replica on a busy machine
// may not have acknowledged in time: they are refused then, and not late.
func TestConformance_replica(t *testing.T) {
	(&store{connect: single, replicas: 1, only: except("G8/shortest-lease", of("GHK", without(processes|broken))), start: func(ctx context.Context) (servers, error) {
		srv, err := testenv.StartRedis(ctx, nil)
		if err != nil {
			return servers{}, err
		}
		replica, err := testenv.StartReplica(ctx, srv, nil)
		if err != nil {
			return servers{}, errors.Join(err, srv.Stop())
		}
		return servers{url: srv.URL(), stop: func() error { return errors.Join(replica.Stop(), srv.Stop()) }}, nil
	}}).run(t)
}

// documentedRights are those for the prefix "app:".
func documentedRights(t *testing.T) []string {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(doc), "//\tACL SETUSER locker on >secret ")
	rule, _, found := strings.Cut(rest, "\n//\n")
	require.True(t, found, "doc.go has no rule")
	return strings.Fields(strings.ReplaceAll(rule, "//", ""))
}

// The cases of a run.
type chooser = func(conformance.Case) bool

// uses chooses the cases that use one of the parts.
func uses(parts conformance.Part) chooser {
	return func(c conformance.Case) bool { return c.Uses&parts != 0 }
}

// without chooses the cases that use none of the parts.
func without(parts conformance.Part) chooser {
	return func(c conformance.Case) bool { return c.Uses&parts == 0 }
}

// of chooses among the cases of some chapters, which are letters: "GH".
func of(chapters string, choose chooser) chooser {
	id := regexp.MustCompile(`^[` + chapters + `]\d/`)
	return func(c conformance.Case) bool { return id.MatchString(c.ID) && choose(c) }
}

// except leaves one of them out.
func except(id string, choose chooser) chooser {
	return func(c conformance.Case) bool { return c.ID != id && choose(c) }
}

const (
	processes = conformance.PartProcesses
	network   = conformance.PartNetwork
	broken    = conformance.PartServer
)

// durable servers keep locks over a crash.
var durable = testenv.RedisConfig{AppendOnly: true}

// servers are what a store is kept by.
type servers struct {
	url       string
	admin     string // the URL of a user with all rights, if url is of another
	stop      func() error
	breakable *conformance.Server // nil: they are not to be broken
}

func breakable(i *testenv.InCharge, failover bool) *conformance.Server {
	return &conformance.Server{Pause: i.Pause, Resume: i.Resume, Kill: i.Kill, Restart: i.Restart, Failover: failover}
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// timeout is the one that is recommended with several servers.
const timeout = time.Second

// The clients, with the driver's own dialer if dial is nil. What is not set here is
// the driver's default; that calls end with their contexts is true of cluster alone.

func single(u *url.URL, dial dialer) (redis.UniversalClient, error) {
	opts, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	opts.Dialer = dial
	return redis.NewClient(opts), nil
}

func failover(u *url.URL, dial dialer) (redis.UniversalClient, error) {
	return redis.NewFailoverClient(&redis.FailoverOptions{
		SentinelAddrs: strings.Split(u.Host, ","), MasterName: strings.Trim(u.Path, "/"), Dialer: dial,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
	}), nil
}

func cluster(u *url.URL, dial dialer) (redis.UniversalClient, error) {
	opts := &redis.ClusterOptions{
		Addrs: strings.Split(u.Host, ","), Dialer: dial, ContextTimeoutEnabled: true,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
	}
	opts.Username = u.User.Username()
	opts.Password, _ = u.User.Password()
	return redis.NewClusterClient(opts), nil
}

// store is what one run judges.
type store struct {
	start    func(ctx context.Context) (servers, error)
	connect  func(u *url.URL, dial dialer) (redis.UniversalClient, error)
	prefix   string
	replicas int
	only     chooser // nil: all cases

	servers  servers
	looker   redis.UniversalClient
	requests atomic.Int64
}

// What the suite's child processes are told of the store.
const (
	urlEnv    = "LOCKER_TEST_CONFORMANCE_URL"
	prefixEnv = "LOCKER_TEST_CONFORMANCE_PREFIX"
)

// run starts the servers, or in a child process takes those of its parent.
func (s *store) run(t *testing.T) {
	if parent, ok := os.LookupEnv(urlEnv); ok {
		s.servers.url, s.prefix = parent, os.Getenv(prefixEnv)
	} else {
		var err error
		s.servers, err = s.start(t.Context())
		started(t, err)
		t.Cleanup(func() { require.NoError(t, s.servers.stop()) })
	}
	var err error
	s.looker, err = s.client(cmp.Or(s.servers.admin, s.servers.url), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.looker.Close() })
	conformance.Run(t, conformance.Harness{
		Open:     func(context.Context) (locker.Locker, error) { return s.open(nil) },
		OpenVia:  func(_ context.Context, net *faultnet.Network) (locker.Locker, error) { return s.open(net.Dial) },
		Server:   s.servers.breakable,
		TTL:      conformance.DefaultTTL / 2,
		Names:    s.names,
		Env:      []string{urlEnv + "=" + s.servers.url, prefixEnv + "=" + s.prefix},
		Requests: s.requests.Load,
		Only:     s.only,
	})
}

func (s *store) open(dial dialer) (locker.Locker, error) {
	rdb, err := s.client(s.servers.url, dial)
	if err != nil {
		return nil, err
	}
	rdb.AddHook(counter{&s.requests})
	l, err := redislock.New(rdb, &redislock.Config{Prefix: s.prefix, Replicas: s.replicas})
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return process{Locker: l, Inspector: l.(locker.Inspector), rdb: rdb}, nil
}

func (s *store) client(raw string, dial dialer) (redis.UniversalClient, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	return s.connect(u, dial)
}

// process ends its client with its Locker. The driver has goroutines for each.
type process struct {
	locker.Locker
	locker.Inspector
	rdb redis.UniversalClient
}

func (p process) Info() locker.Info { return p.Locker.(interface{ Info() locker.Info }).Info() }

func (p process) Close(ctx context.Context) error {
	err := p.Locker.Close(ctx)
	_ = p.rdb.Close() // the second one is an error
	return err
}

// names lists keys and channels, without the token counters.
func (s *store) names(ctx context.Context) ([]string, error) {
	cluster, ok := s.looker.(*redis.ClusterClient)
	if !ok {
		return s.namesOn(ctx, s.looker)
	}
	var mu sync.Mutex
	var names []string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		more, err := s.namesOn(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		names = append(names, more...)
		return err
	})
	return names, err
}

func (s *store) namesOn(ctx context.Context, node redis.UniversalClient) ([]string, error) {
	var names []string
	keys := node.Scan(ctx, 0, s.prefix+"*", 0).Iterator()
	for keys.Next(ctx) {
		if !strings.HasPrefix(keys.Val(), s.prefix+"\x00token") {
			names = append(names, keys.Val())
		}
	}
	channels, err := node.PubSubChannels(ctx, s.prefix+"*").Result()
	return append(names, channels...), errors.Join(keys.Err(), err)
}

// counter counts the requests of a client. What its subscriptions send does not
// come by.
type counter struct{ n *atomic.Int64 }

func (c counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
