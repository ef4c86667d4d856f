package pglock_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/conformance/faultnet"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/pglock"
)

// What the suite's child processes are told of the server.
const conformanceURL = "LOCKER_TEST_CONFORMANCE_POSTGRES"

// The server is one that keeps what was committed over a crash.
func TestConformance_lease(t *testing.T) {
	url, isChild := os.LookupEnv(conformanceURL)
	var server *conformance.Server
	if !isChild {
		srv, err := testenv.StartPostgres(t.Context(), nil)
		if testenv.Skippable(err) {
			t.Skip(err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, srv.Stop()) })
		url, server = srv.URL(), breakable(srv)
	}
	s := &leases{url: url}
	looker, err := s.pool(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(looker.Close)
	conformance.Run(t, conformance.Harness{
		Open:    func(ctx context.Context) (locker.Locker, error) { return s.open(ctx, nil) },
		OpenVia: func(ctx context.Context, net *faultnet.Network) (locker.Locker, error) { return s.open(ctx, net) },
		Server:  server,
		TTL:     conformance.DefaultTTL / 2,
		Names: func(ctx context.Context) ([]string, error) {
			rows, _ := looker.Query(ctx, "SELECT key FROM locker_lease WHERE holder <> '' AND expires_at > clock_timestamp()")
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
		Env:      []string{conformanceURL + "=" + url},
		Requests: s.requests.Load,
	})
}

func breakable(p *testenv.Postgres) *conformance.Server {
	return &conformance.Server{
		Pause:   func(context.Context) error { return p.Pause() },
		Resume:  func(context.Context) error { return p.Resume() },
		Kill:    func(context.Context) error { return p.Kill() },
		Restart: p.Restart,
	}
}

// leases opens Lockers on one server.
type leases struct {
	url      string
	requests atomic.Int64
}

func (s *leases) pool(ctx context.Context, net *faultnet.Network) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	if net != nil {
		cfg.ConnConfig.DialFunc = net.Dial
	}
	cfg.ConnConfig.Tracer = statements{&s.requests}
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (s *leases) open(ctx context.Context, net *faultnet.Network) (locker.Locker, error) {
	pool, err := s.pool(ctx, net)
	if err != nil {
		return nil, err
	}
	l, err := pglock.NewLease(ctx, pool, &pglock.LeaseConfig{Create: true})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return process{Locker: l, Inspector: l.(locker.Inspector), pool: pool}, nil
}

// process ends its pool with its Locker. The driver has goroutines for each.
type process struct {
	locker.Locker
	locker.Inspector
	pool *pgxpool.Pool
}

func (p process) Info() locker.Info { return p.Locker.(interface{ Info() locker.Info }).Info() }

// Close does not wait long for the pool: of a connection that was given up it asks the
// server, for up to 15 s, to cancel what runs there.
func (p process) Close(ctx context.Context) error {
	err := p.Locker.Close(ctx)
	closed := make(chan struct{})
	go func() {
		p.pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
	return err
}

// statements counts what a pool sends.
type statements struct{ n *atomic.Int64 }

func (s statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

func (s statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
