// Command soak runs what takes too long for make test, and prints its figures: many
// random histories and repeated trials on real servers of its own: Redis alone, behind
// Sentinel and in a cluster, each kind of lock on Postgres, and etcd alone and in a cluster of
// three. make soak runs all of it;
// -only chooses.
//
// It exits with 1 if a lock broke its contract, or if a control, a lock that is
// known to be broken, was not caught; with 2 if it could not be run, or was ended by
// Ctrl-C. It needs redis-server, Postgres, PgBouncer and etcd. Two at a time on one machine measure each other.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	_ "github.com/go-locker/locker/etcdlock"
	"github.com/go-locker/locker/internal/testenv"
	_ "github.com/go-locker/locker/pglock"
	_ "github.com/go-locker/locker/redislock"
)

// urlEnv tells a child which store it is to use.
const urlEnv = "LOCKER_SOAK_URL"

// ttl is the lease of all that is measured, where the store has one so short.
const ttl = 500 * time.Millisecond

type soak struct {
	out    io.Writer
	first  uint64
	seeds  uint64        // of each part; 0: as many as it has by default
	length time.Duration // of a history; 0: its default
	trials int
	broken bool
}

func main() { os.Exit(command()) }

func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	logging.Disable() // what the driver logs, the figures tell
	registerControls()
	if conformance.Child(ctx, harness(os.Getenv(urlEnv))) {
		return 0
	}
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	s := soak{out: out}
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Uint64Var(&s.first, "seed", 1, "the first seed")
	flags.Uint64Var(&s.seeds, "seeds", 0, "histories of each kind; 0 is 100 on one Redis, 30 on Sentinel and on a cluster, 50 on each kind of Postgres lock and on etcd")
	flags.DurationVar(&s.length, "length", 0, "for how long a history has faults; 0 is 12 TTLs")
	flags.IntVar(&s.trials, "trials", 20, "trials of each figure")
	only := flags.String("only", "", "only the parts whose name matches this `regexp`")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	for _, part := range s.parts() {
		if !chosen.MatchString(part.name) {
			continue
		}
		fmt.Fprintf(out, "%s (%s, TTL %v)\n", part.name, time.Now().Format(time.DateOnly), cmp.Or(part.ttl, ttl))
		if err := part.run(ctx); err != nil {
			fmt.Fprintf(errs, "%s: %v\n", part.name, err)
			return 2
		}
	}
	if s.broken {
		return 1
	}
	return 0
}

// part is what -only chooses.
type part struct {
	name string
	run  func(context.Context) error
	ttl  time.Duration // 0: the usual one
}

func (s *soak) parts() []part {
	return slices.Concat([]part{
		{name: "controls", run: s.controls},
		{name: "histories/redis", run: s.historiesOnRedis},
		{name: "histories/sentinel", run: s.historiesOnSentinel},
		{name: "histories/cluster", run: s.historiesOnCluster},
		{name: "trials/redis", run: s.trialsOnRedis},
		{name: "trials/sentinel", run: s.trialsOnSentinel},
		{name: "trials/cluster", run: s.trialsOnCluster},
		{name: "trials/replicas", run: s.trialsOfReplicas},
	}, s.partsOnPostgres(), s.partsOnEtcd())
}

// harness reaches a store by its URL.
func harness(url string) conformance.Harness {
	return conformance.Harness{
		Open: func(ctx context.Context) (locker.Locker, error) { return locker.Open(ctx, url) },
		OpenVia: func(ctx context.Context, net *faultnet.Network) (locker.Locker, error) {
			return locker.OpenWith(ctx, url, &locker.OpenConfig{Dial: net.Dial})
		},
		TTL: ttl,
		Env: []string{urlEnv + "=" + url},
	}
}

func breaking(i *testenv.InCharge, failover bool) *conformance.Server {
	return &conformance.Server{Pause: i.Pause, Resume: i.Resume, Kill: i.Kill, Restart: i.Restart, Failover: failover}
}

// durable keeps what it has confirmed, also when it is killed.
var durable = testenv.RedisConfig{AppendOnly: true}

func withRedis(ctx context.Context, run func(h conformance.Harness) error) error {
	srv, err := testenv.StartRedis(ctx, &durable)
	if err != nil {
		return err
	}
	h := harness(srv.URL())
	h.Server = breaking(srv.InCharge(), false)
	return errors.Join(run(h), srv.Stop())
}

func withSentinel(ctx context.Context, query string, run func(h conformance.Harness) error) error {
	srv, err := testenv.StartSentinel(ctx, &testenv.SentinelConfig{Redis: durable})
	if err != nil {
		return err
	}
	h := harness(srv.URL() + query)
	h.Server = breaking(srv.InCharge(), true)
	return errors.Join(run(h), srv.Stop())
}

// withCluster has all keys in one slot, so that the node which breaks is theirs.
func withCluster(ctx context.Context, query string, run func(h conformance.Harness) error) error {
	const tag = "{soak}"
	srv, err := testenv.StartCluster(ctx, &testenv.ClusterConfig{Redis: durable})
	if err != nil {
		return err
	}
	h := harness(srv.URL() + "?prefix=" + tag + query)
	h.Server = breaking(srv.InCharge(tag), true)
	return errors.Join(run(h), srv.Stop())
}
