// Command soak runs what takes too long for make test, and prints its figures: many
// random histories and repeated trials on real servers of its own, alone and behind
// Sentinel and in a cluster. make soak runs all of it; -only chooses.
//
// It exits with 1 if a lock broke its contract, or if a control, a lock that is
// known to be broken, was not caught; with 2 if it could not be run, or was ended by
// Ctrl-C. It needs redis-server. Two at a time on one machine measure each other.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	"github.com/go-locker/locker/internal/testenv"
	_ "github.com/go-locker/locker/redislock"
)

// urlEnv tells a child which store it is to use.
const urlEnv = "LOCKER_SOAK_URL"

// ttl is the lease of all that is measured.
const ttl = 500 * time.Millisecond

type soak struct {
	seeds  uint64 // of one server
	first  uint64
	others uint64 // of Sentinel and the cluster
	trials int
	broken bool
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	registerControls()
	if conformance.Child(ctx, harness(os.Getenv(urlEnv))) {
		return 0
	}

	var s soak
	flag.Uint64Var(&s.first, "seed", 1, "the first seed")
	flag.Uint64Var(&s.seeds, "seeds", 100, "histories on one server")
	flag.Uint64Var(&s.others, "others", 30, "histories on Sentinel and on a cluster, each")
	flag.IntVar(&s.trials, "trials", 20, "trials of each figure")
	only := flag.String("only", "", "only the parts whose name matches this `regexp`")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"controls", s.controls},
		{"histories/redis", s.historiesOnRedis},
		{"histories/sentinel", s.historiesOnSentinel},
		{"histories/cluster", s.historiesOnCluster},
		{"trials/redis", s.trialsOnRedis},
		{"trials/sentinel", s.trialsOnSentinel},
		{"trials/cluster", s.trialsOnCluster},
		{"trials/replicas", s.trialsOfReplicas},
	} {
		if !chosen.MatchString(part.name) {
			continue
		}
		fmt.Printf("%s (%s, TTL %v)\n", part.name, time.Now().Format(time.DateOnly), ttl)
		if err := part.run(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", part.name, err)
			return 2
		}
	}
	if s.broken {
		return 1
	}
	return 0
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
