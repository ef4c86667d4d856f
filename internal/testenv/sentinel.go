package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masterName = "mymaster"
	sentinels  = 3
	quorum     = 2
)

// SentinelConfig configures a master with replicas and three sentinels. A nil
// *SentinelConfig stands for the defaults.
type SentinelConfig struct {
	// Replicas is how many there are: 2 by default.
	Replicas int

	// DownAfter is for how long a server may be silent before a sentinel takes it
	// for down: 500 ms by default, whole milliseconds.
	DownAfter time.Duration

	// FailoverTimeout: after twice this time the next failover may begin. It is
	// 2 s by default, whole milliseconds.
	FailoverTimeout time.Duration

	// Period is how often the sentinels look at the servers and tell each other
	// about them: 100 ms by default, whole milliseconds. A master that comes back
	// after a failover takes writes for four periods, before it is made a replica.
	// Redis' own are 10 s and 2 s, so that this takes 8 s. Before Redis 7.0, and
	// for a sentinel that was restarted, they hold.
	Period time.Duration

	// Redis is what each of the master and the replicas is started with.
	Redis RedisConfig
}

// Sentinel is a master with its replicas, and the sentinels that make one of those
// the master when it fails. It is safe for concurrent use.
type Sentinel struct {
	data, sentinels []*Redis
}

// StartSentinel starts the servers, and waits until all replicas acknowledge writes
// and all sentinels know all servers and each other. ctx bounds the start only. Stop
// has to be called. If redis-server is not installed, the error matches
// ErrNotInstalled.
func StartSentinel(ctx context.Context, cfg *SentinelConfig) (*Sentinel, error) {
	var c SentinelConfig
	if cfg != nil {
		c = *cfg
	}
	if c.Replicas < 0 {
		return nil, errors.New("testenv: a negative number of replicas")
	}
	if err := wholeMilliseconds(c.DownAfter, c.FailoverTimeout, c.Period); err != nil {
		return nil, err
	}
	c.Replicas = cmp.Or(c.Replicas, 2)
	c.DownAfter = cmp.Or(c.DownAfter, 500*time.Millisecond)
	c.FailoverTimeout = cmp.Or(c.FailoverTimeout, 2*time.Second)
	c.Period = cmp.Or(c.Period, 100*time.Millisecond)
	s := &Sentinel{}
	if err := s.start(ctx, &c); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Sentinel) start(ctx context.Context, cfg *SentinelConfig) error {
	master, err := StartRedis(ctx, &cfg.Redis)
	if err != nil {
		return err
	}
	s.data = []*Redis{master}
	replicas, err := startAll(cfg.Replicas, func(int) (*Redis, error) { return StartReplica(ctx, master, &cfg.Redis) })
	if err != nil {
		return err
	}
	s.data = append(s.data, replicas...)
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return err
	}
	conf := []string{
		fmt.Sprintf("sentinel monitor %s %s %s %d", masterName, host, port, quorum),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", masterName, cfg.DownAfter.Milliseconds()),
		fmt.Sprintf("sentinel failover-timeout %s %d", masterName, cfg.FailoverTimeout.Milliseconds()),
	}
	s.sentinels, err = startAll(sentinels, func(int) (*Redis, error) { return startServer(ctx, conf, "--sentinel") })
	if err != nil {
		return err
	}
	_ = each(s.sentinels, func(_ int, r *Redis) error {
		// Before 7.0 this is an error, and the sentinels are slower.
		return r.send(ctx, "SENTINEL", "DEBUG",
			"info-period", cfg.Period.Milliseconds(),
			"publish-period", cfg.Period.Milliseconds(),
			// As often as DownAfter, a live server would be found down now and then. More
			// often, a replica that is asked every second, as it is while its master is
			// down, would be found too old to be promoted: five of these are the limit.
			"ping-period", 300,
			"tilt-period", 1000)
	})
	return s.AwaitReplicas(ctx)
}

// MasterName is what the sentinels call the master.
func (s *Sentinel) MasterName() string { return masterName }

// Addrs are the sentinels' addresses, each host:port.
func (s *Sentinel) Addrs() []string { return addrs(s.sentinels) }

// URL names the sentinels and the master: "redis-sentinel://host:port,host:port,host:port/mymaster".
func (s *Sentinel) URL() string {
	return "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + masterName
}

// Data are the master and the replicas. Which of them is the master changes; the
// first one is it at the start.
func (s *Sentinel) Data() []*Redis { return slices.Clone(s.data) }

// Sentinels are the sentinels, to be killed or paused. One that was paused for more
// than 2 s takes no part in a failover for another second; that second is 30 s for one
// that was restarted, and before Redis 7.0.
func (s *Sentinel) Sentinels() []*Redis { return slices.Clone(s.sentinels) }

// Master is the server that is the master by the word of a sentinel, the first one
// to answer. It may be down. It blocks until that answer or ctx's end.
func (s *Sentinel) Master(ctx context.Context) (*Redis, error) {
	var errs []error
	for _, r := range s.sentinels {
		master, err := s.masterBy(ctx, r)
		if err == nil {
			return master, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (s *Sentinel) masterBy(ctx context.Context, r *Redis) (master *Redis, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err = r.askSentinel(ctx, func(c *redis.SentinelClient) error {
		at, err := c.GetMasterAddrByName(ctx, masterName).Result()
		if err != nil {
			return err
		}
		addr := net.JoinHostPort(at[0], at[1])
		for _, r := range s.data {
			if r.Addr() == addr {
				master = r
				return nil
			}
		}
		return fmt.Errorf("sentinel %s names a stranger: %s", r.Addr(), addr)
	})
	return master, err
}

// AwaitMaster waits until the master, by the word of a sentinel, is another than
// this one and takes writes, and returns it. It blocks until ctx ends, but not
// longer than 30 s.
func (s *Sentinel) AwaitMaster(ctx context.Context, other *Redis) (*Redis, error) {
	var master *Redis
	err := until(ctx, "another master", func(ctx context.Context) (err error) {
		if master, err = s.Master(ctx); err != nil {
			return err
		}
		if master == other {
			return fmt.Errorf("the master is %s", other.Addr())
		}
		return master.replicates(ctx)
	})
	if err != nil {
		return nil, err
	}
	return master, nil
}

// AwaitReplicas waits until all the other servers acknowledge a write of the master,
// and every sentinel that was not killed knows of that, and of all the others: the
// next failover may come. It blocks until ctx ends, but not longer than 30 s.
func (s *Sentinel) AwaitReplicas(ctx context.Context) error {
	return until(ctx, "all replicas", func(ctx context.Context) error {
		master, err := s.Master(ctx)
		if err != nil {
			return err
		}
		replicas := slices.DeleteFunc(s.Data(), func(r *Redis) bool { return r == master })
		if err := master.replicates(ctx, replicas...); err != nil {
			return err
		}
		return each(s.sentinels, func(_ int, r *Redis) error {
			if r.PID() == 0 {
				return nil
			}
			return r.watches(ctx, master, len(replicas))
		})
	})
}

// watches is nil if this sentinel is ready for a failover: it is connected to all the
// others, and knows of each replica that it is in order. It would not promote
// another.
func (r *Redis) watches(ctx context.Context, master *Redis, replicas int) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return r.askSentinel(ctx, func(c *redis.SentinelClient) error {
		m, err := c.Master(ctx, masterName).Result()
		if err != nil {
			return err
		}
		known, err := c.Replicas(ctx, masterName).Result()
		if err != nil {
			return err
		}
		peers, err := c.Sentinels(ctx, masterName).Result()
		if err != nil {
			return err
		}
		known = slices.DeleteFunc(known, func(r map[string]string) bool { return r["flags"] != "slave" || r["master-link-status"] != "ok" })
		// There may be more flags: what they think of the last master stands there for 5 s.
		peers = slices.DeleteFunc(peers, func(p map[string]string) bool {
			return strings.Contains(p["flags"], "s_down") || strings.Contains(p["flags"], "disconnected")
		})
		if at := net.JoinHostPort(m["ip"], m["port"]); at != master.Addr() || m["flags"] != "master" || len(known) != replicas || len(peers) != sentinels-1 {
			return fmt.Errorf("sentinel %s sees %s as %s, with %d replicas and %d sentinels", r.Addr(), at, m["flags"], len(known), len(peers))
		}
		return nil
	})
}

func (r *Redis) askSentinel(ctx context.Context, commands func(*redis.SentinelClient) error) error {
	opts, err := r.options(ctx)
	if err != nil {
		return err
	}
	c := redis.NewSentinelClient(opts)
	return errors.Join(commands(c), c.Close())
}

// Stop ends all servers and removes their directories. A second Stop does nothing.
func (s *Sentinel) Stop() error { return stopAll(slices.Concat(s.sentinels, s.data)) }
