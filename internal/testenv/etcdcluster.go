package testenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// EtcdCluster is a cluster of three members, of which a majority has to run and be in
// touch. It is safe for concurrent use.
type EtcdCluster struct {
	members []*Etcd
	lines   *lines
}

// StartEtcdCluster starts the members and waits until all have the same leader and
// answer. Each is started with the config. ctx bounds the start only. Stop has to be
// called. If etcd was not built, the error matches ErrNotInstalled.
func StartEtcdCluster(ctx context.Context, cfg *EtcdConfig) (*EtcdCluster, error) {
	args, err := cfg.args()
	if err != nil {
		return nil, err
	}
	names := []string{"etcd-1", "etcd-2", "etcd-3"}
	c := &EtcdCluster{}
	if c.lines, err = startLines(names); err != nil {
		return nil, err
	}
	c.members, err = startAll(len(names), func(i int) (*Etcd, error) {
		return startEtcd(ctx, args, names[i], names, c.lines.of[names[i]])
	})
	if err == nil {
		err = c.AwaitOK(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// Members are the members. Which of them leads changes.
func (c *EtcdCluster) Members() []*Etcd { return slices.Clone(c.members) }

// Addrs are the members' addresses, each host:port.
func (c *EtcdCluster) Addrs() []string { return addrs(c.members) }

// URL names all members: "etcd://host:port,host:port,host:port".
func (c *EtcdCluster) URL() string { return "etcd://" + strings.Join(c.Addrs(), ",") }

// Leader is the member that leads, by its own word and that of another. It blocks until all
// members have answered or ctx ends, but not longer than 500 ms. It asks without a
// password, so it is not for a cluster that wants one.
func (c *EtcdCluster) Leader(ctx context.Context) (*Etcd, error) { return c.leaderOf(ctx, 2) }

// leaderOf is the member that leads so many of the members, itself included.
func (c *EtcdCluster) leaderOf(ctx context.Context, members int) (*Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	says := make([]etcdStatus, len(c.members))
	err := each(c.members, func(i int, e *Etcd) (err error) {
		says[i], err = e.status(ctx)
		return err
	})
	for i, leader := range says {
		followers := 0
		for _, s := range says {
			if s.Leader == leader.Header.Me && s.Term == leader.Term {
				followers++
			}
		}
		if leader.Leader != "" && leader.Leader == leader.Header.Me && followers >= members {
			return c.members[i], nil
		}
	}
	return nil, errors.Join(fmt.Errorf("testenv: nobody leads %d members: %v", members, says), err)
}

// AwaitLeader waits until another member than this one leads, and serves clients, and
// returns it. It blocks until ctx ends, but not longer than 30 s.
func (c *EtcdCluster) AwaitLeader(ctx context.Context, other *Etcd) (leader *Etcd, err error) {
	err = until(ctx, "another leader", func(ctx context.Context) (err error) {
		if leader, err = c.Leader(ctx); err != nil {
			return err
		}
		if leader == other {
			return fmt.Errorf("the leader is %s", other.Addr())
		}
		return leader.current(ctx)
	})
	return leader, err
}

// AwaitOK waits until the cluster is whole: all members have the same leader and have
// caught up with it. It blocks until ctx ends, but not longer than 30 s; that is the end
// while a member is down, paused or cut off.
func (c *EtcdCluster) AwaitOK(ctx context.Context) error {
	return until(ctx, "the cluster", func(ctx context.Context) error {
		if _, err := c.leaderOf(ctx, len(c.members)); err != nil {
			return err
		}
		return each(c.members, func(_ int, e *Etcd) error { return e.current(ctx) })
	})
}

// Stop ends all members and removes their directories. A second Stop does nothing.
func (c *EtcdCluster) Stop() error {
	defer c.lines.stop()
	return stopAll(c.members)
}
