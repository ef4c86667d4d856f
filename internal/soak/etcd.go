package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/internal/testenv"
)

// etcdTTL is the shortest lease of servers that hold elections after half a second.
const (
	etcdTTL  = time.Second
	shortest = "/?min_ttl=1s"
)

var quickEtcd = testenv.EtcdConfig{Election: 500 * time.Millisecond, Heartbeat: 50 * time.Millisecond}

func (s *soak) partsOnEtcd() []part {
	return []part{
		{name: "histories/etcd", ttl: etcdTTL, run: func(ctx context.Context) error {
			return withEtcdCluster(ctx, func(h conformance.Harness) error { return s.histories(ctx, h, 50) })
		}},
		{name: "trials/etcd", ttl: etcdTTL, run: func(ctx context.Context) error {
			return withEtcd(ctx, func(h conformance.Harness) error { return s.repeat(ctx, h, faultsOfOneServer) })
		}},
		{name: "trials/etcd-cluster", ttl: etcdTTL, run: func(ctx context.Context) error {
			return withEtcdCluster(ctx, func(h conformance.Harness) error { return s.repeat(ctx, h, `^W4/server-killed$`) })
		}},
	}
}

func withEtcd(ctx context.Context, run func(h conformance.Harness) error) error {
	srv, err := testenv.StartEtcd(ctx, &quickEtcd)
	if err != nil {
		return err
	}
	h := harness(srv.URL() + shortest)
	h.TTL = etcdTTL
	h.Server = breaking(srv.InCharge(), false)
	return errors.Join(run(h), srv.Stop())
}

// withEtcdCluster has what breaks be the leader of three, which is also cut off from the
// others at times.
func withEtcdCluster(ctx context.Context, run func(h conformance.Harness) error) error {
	srv, err := testenv.StartEtcdCluster(ctx, &quickEtcd)
	if err != nil {
		return err
	}
	h := harness(srv.URL() + shortest)
	h.TTL = etcdTTL
	leader := srv.InCharge()
	h.Server = breaking(leader, true)
	h.Server.CutOff, h.Server.Reconnect = leader.CutOff, leader.Reconnect
	return errors.Join(run(h), srv.Stop())
}
