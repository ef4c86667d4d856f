package etcdlock

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	"github.com/go-locker/locker/internal/testenv"
)

func TestConformance(t *testing.T) { // C56, C58, C118, C120
	(&store{start: func(ctx context.Context) (servers, error) {
		srv, err := testenv.StartEtcd(ctx, quick)
		if err != nil {
			return servers{}, err
		}
		return servers{addrs: []string{srv.Addr()}, stop: srv.Stop, breakable: breakable(srv.InCharge())}, nil
	}}).run(t)
}

// servers are what a store is kept by.
type servers struct {
	addrs     []string
	stop      func() error
	breakable *conformance.Server
}

func breakable(i *testenv.InCharge) *conformance.Server {
	return &conformance.Server{Pause: i.Pause, Resume: i.Resume, Kill: i.Kill, Restart: i.Restart}
}

// store is what one run judges.
type store struct {
	start func(ctx context.Context) (servers, error)
	only  func(conformance.Case) bool // nil: all cases

	servers  servers
	requests atomic.Int64
}

// addrsEnv tells the suite's child processes of the store.
const addrsEnv = "LOCKER_TEST_CONFORMANCE_ETCD"

// run starts the servers, or in a child process takes those of its parent.
func (s *store) run(t *testing.T) {
	if parent, ok := os.LookupEnv(addrsEnv); ok {
		s.servers.addrs = strings.Split(parent, ",")
	} else {
		var err error
		s.servers, err = s.start(t.Context())
		started(t, err)
		t.Cleanup(func() { require.NoError(t, s.servers.stop()) })
	}
	looker := connect(t, s.servers.addrs...)
	conformance.Run(t, conformance.Harness{
		Open: func(ctx context.Context) (locker.Locker, error) { return s.locker(new(net.Dialer).DialContext) },
		OpenVia: func(ctx context.Context, net *faultnet.Network) (locker.Locker, error) {
			return s.locker(net.Dial)
		},
		Server: s.servers.breakable,
		TTL:    time.Second,
		Names: func(ctx context.Context) (names []string, err error) {
			seen, err := looker.Get(ctx, DefaultPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				return nil, err
			}
			for _, kv := range seen.Kvs {
				if !strings.HasPrefix(string(kv.Key), DefaultPrefix+internal) { // a lease, for the next lock
					names = append(names, string(kv.Key))
				}
			}
			return names, nil
		},
		Env:      []string{addrsEnv + "=" + strings.Join(s.servers.addrs, ",")},
		Requests: s.requests.Load,
		Only:     s.only,
	})
}

func (s *store) locker(dial dialer) (locker.Locker, error) {
	return openWith(context.Background(), clientv3.Config{Endpoints: s.servers.addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(s.countCall), grpc.WithChainStreamInterceptor(s.countStream),
	}}, dial, &Config{MinTTL: time.Second})
}

func (s *store) countCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	s.requests.Add(1)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (s *store) countStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, cc, method, opts...)
	return counted{stream, &s.requests}, err
}

// counted counts what is asked on a stream.
type counted struct {
	grpc.ClientStream
	n *atomic.Int64
}

func (c counted) SendMsg(m any) error {
	c.n.Add(1)
	return c.ClientStream.SendMsg(m)
}
