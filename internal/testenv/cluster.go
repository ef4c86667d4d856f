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
	clusterMasters = 3
	clusterSlots   = 16384
)

// ClusterConfig configures a cluster of three masters with a replica each. A nil
// *ClusterConfig stands for the defaults.
type ClusterConfig struct {
	// NodeTimeout is for how long a node may be silent before the others take it
	// for down: 1 s by default, whole milliseconds.
	NodeTimeout time.Duration

	// Redis is what each node is started with.
	Redis RedisConfig
}

// Cluster is a Redis Cluster: three masters, each with a third of the slots and with
// a replica that takes its place when it fails. It is safe for concurrent use.
type Cluster struct {
	nodes []*Redis
}

// StartCluster starts the nodes and waits until all slots are served and all
// replicas acknowledge writes. ctx bounds the start only. Stop has to be called. If
// redis-server is not installed, the error matches ErrNotInstalled.
func StartCluster(ctx context.Context, cfg *ClusterConfig) (*Cluster, error) {
	if cfg == nil {
		cfg = &ClusterConfig{}
	}
	if err := wholeMilliseconds(cfg.NodeTimeout); err != nil {
		return nil, err
	}
	timeout := cmp.Or(cfg.NodeTimeout, time.Second)
	conf := cfg.Redis.lines("cluster-enabled yes", fmt.Sprintf("cluster-node-timeout %d", timeout.Milliseconds()))
	nodes, err := startAll(2*clusterMasters, func(int) (*Redis, error) { return startServer(ctx, conf) })
	if err != nil {
		return nil, err
	}
	c := &Cluster{nodes}
	if err := c.form(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// form makes a cluster of the nodes: the first three are masters, and each of the
// others is the replica of one of them.
func (c *Cluster) form(ctx context.Context) error {
	masters, replicas := c.nodes[:clusterMasters], c.nodes[clusterMasters:]
	err := each(c.nodes, func(i int, r *Redis) error {
		// Two masters with the same epoch would have to agree on others first. A node
		// that has met another refuses this.
		return r.send(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
	})
	if err != nil {
		return err
	}
	ids := make([]string, clusterMasters)
	err = each(c.nodes, func(i int, r *Redis) error {
		return r.ask(ctx, func(client *redis.Client) error {
			for _, other := range c.nodes[:i] { // all pairs: nobody waits for news of others
				host, port, _ := net.SplitHostPort(other.Addr())
				if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
					return err
				}
			}
			if i >= clusterMasters {
				return nil
			}
			first, next := clusterSlots*i/clusterMasters, clusterSlots*(i+1)/clusterMasters
			if err := client.ClusterAddSlotsRange(ctx, first, next-1).Err(); err != nil {
				return err
			}
			var err error
			ids[i], err = client.ClusterMyID(ctx).Result()
			return err
		})
	})
	if err != nil {
		return err
	}
	err = each(replicas, func(i int, r *Redis) error {
		return until(ctx, "node "+r.Addr()+" to know its master "+masters[i].Addr(), func(ctx context.Context) error {
			return r.send(ctx, "CLUSTER", "REPLICATE", ids[i])
		})
	})
	if err != nil {
		return err
	}
	return c.AwaitOK(ctx)
}

// Addrs are the nodes' addresses, each host:port.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// URL names the nodes: "redis-cluster://host:port,host:port,…".
func (c *Cluster) URL() string { return "redis-cluster://" + strings.Join(c.Addrs(), ",") }

// Nodes are all nodes. The first three are masters at the start.
func (c *Cluster) Nodes() []*Redis { return slices.Clone(c.nodes) }

// MasterFor is the node that serves the key now. An error says that none does, or
// none within half a second. A master that was paused or cut off may serve, for a
// moment, what another has taken over: which of the two it is then is not said.
func (c *Cluster) MasterFor(ctx context.Context, key string) (*Redis, error) {
	return c.masterFor(ctx, key, nil)
}

// AwaitMaster waits until the key is served by another node than this one, and
// returns it. It blocks until ctx ends, but not longer than 30 s.
func (c *Cluster) AwaitMaster(ctx context.Context, key string, other *Redis) (master *Redis, err error) {
	err = until(ctx, "another master", func(ctx context.Context) (err error) {
		master, err = c.masterFor(ctx, key, other)
		return err
	})
	return master, err
}

// masterFor asks all nodes but one, since the one may be paused. Only the master of a
// slot answers; the others, and a master that has lost the cluster, say so.
func (c *Cluster) masterFor(ctx context.Context, key string, but *Redis) (*Redis, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	errs := make([]error, len(c.nodes))
	_ = each(c.nodes, func(i int, r *Redis) error {
		if r == but {
			errs[i] = errors.New("left out")
		} else {
			errs[i] = r.send(ctx, "EXISTS", key)
		}
		return nil
	})
	if i := slices.Index(errs, nil); i >= 0 {
		return c.nodes[i], nil
	}
	return nil, fmt.Errorf("testenv: nobody serves the key: %w", errors.Join(errs...))
}

// AwaitOK waits until the cluster is whole: all nodes say that all slots are served,
// there are three masters, and all the others acknowledge their masters' writes. It
// blocks until ctx ends, but not longer than 30 s; that is the end while a node is
// down or paused.
func (c *Cluster) AwaitOK(ctx context.Context) error {
	return until(ctx, "the cluster", func(ctx context.Context) error {
		replicas := make([]string, len(c.nodes)) // whose replica each node is, or ""
		err := each(c.nodes, func(i int, r *Redis) (err error) {
			replicas[i], err = r.inCluster(ctx)
			return err
		})
		if err != nil {
			return err
		}
		return each(c.nodes, func(i int, r *Redis) error {
			if replicas[i] != "" {
				return nil
			}
			var mine []*Redis
			for j, of := range replicas {
				if of == r.Addr() {
					mine = append(mine, c.nodes[j])
				}
			}
			if len(mine) != 1 {
				return fmt.Errorf("master %s has %d replicas", r.Addr(), len(mine))
			}
			return r.replicates(ctx, mine...)
		})
	})
}

// inCluster is the address of the node's master, or "" if it is one itself, once it
// finds the cluster in order.
func (r *Redis) inCluster(ctx context.Context) (master string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err = r.ask(ctx, func(client *redis.Client) error {
		text, err := client.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		if state := fields(text)["cluster_state"]; state != "ok" {
			return fmt.Errorf("node %s: the cluster's state is %s", r.Addr(), state)
		}
		role, err := replication(ctx, client)
		if err == nil && role["role"] == "slave" {
			master = net.JoinHostPort(role["master_host"], role["master_port"])
		}
		return err
	})
	return master, err
}

// Stop ends all nodes and removes their directories. A second Stop does nothing.
func (c *Cluster) Stop() error { return stopAll(c.nodes) }
