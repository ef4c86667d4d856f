package pglock

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"regexp"
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
)

// Advisory locks and leases are judged by all cases. Everything else is judged by those
// that could end differently there, because the rest would cost minutes and prove nothing.

func TestConformance_advisory(t *testing.T) { // C93, C94, C96, C104
	(&store{start: direct, names: advisoryNames, open: openOnAdvisory}).run(t)
}

// Each waiter has a session, and a place in the server's line.
func TestConformance_blocked(t *testing.T) { // C56, C106
	t.Parallel()
	(&store{start: direct, names: advisoryNames, only: of("G4/lost|H5|R3|W1/[^n]|W[35]|House/nothing"), open: func(ctx context.Context, pool, _ *pgxpool.Pool) (locker.Locker, error) {
		return New(ctx, pool, &Config{Create: true, BlockedWaiters: true, RestartGrace: conformance.DefaultTTL})
	}}).run(t)
}

// Each lock and each waiter has a session, and the lock a transaction.
func TestConformance_row(t *testing.T) { // C56, C106
	(&store{start: direct, names: rowNames, only: of("G1/(lock|proc)|G4|G3/token$|H2/(server|stopped)|H5|R1/(twice|forced)|R3|W1/(kil|exp|los)|W[35]|House/nothing"), open: func(ctx context.Context, pool, _ *pgxpool.Pool) (locker.Locker, error) {
		return NewRow(ctx, pool, &RowConfig{Create: true, RestartGrace: conformance.DefaultTTL})
	}}).run(t)
}

func TestConformance_lease(t *testing.T) { // C110, C113, C114
	// Each renewal is a commit, for which half the usual TTL leaves a busy machine too little.
	(&store{start: direct, names: leaseNames, open: openOnLeases, ttl: conformance.DefaultTTL}).run(t)
}

// Every statement may come to another session. Releases are heard of on a connection
// that goes to the server itself.
func TestConformance_leaseThroughPgBouncer(t *testing.T) { // C98, C99
	t.Parallel()
	(&store{start: behind("transaction"), names: leaseNames, open: openOnLeases, ttl: conformance.DefaultTTL,
		only: of("G1/(lockers|proc)|G[47]/[^c]|R2/lost|W1/(kil|los)|W4/server|K1/(ind|long)")}).run(t)
}

// A connection's end is its session's, but for what PgBouncer has to do with it.
func TestConformance_advisoryThroughSessionPooler(t *testing.T) { // C98
	t.Parallel()
	(&store{start: behind("session"), names: advisoryNames, open: openOnAdvisory, ttl: conformance.DefaultTTL,
		only: of("G4/lost|H5|R4|W1/kil|W4/server|House/nothing")}).run(t)
}

func openOnAdvisory(ctx context.Context, pool, _ *pgxpool.Pool) (locker.Locker, error) {
	return New(ctx, pool, &Config{Create: true, RestartGrace: conformance.DefaultTTL})
}

func openOnLeases(ctx context.Context, pool, listen *pgxpool.Pool) (locker.Locker, error) {
	return NewLease(ctx, pool, &LeaseConfig{Create: true, Listen: listen})
}

// What is about locks in the store: those that are held, waited for, or marked.
const (
	advisoryNames = `SELECT concat_ws('/', pid, classid, objid, objsubid) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	leaseNames = advisoryNames + ` UNION ALL SELECT key FROM locker_lease WHERE holder <> '' AND expires_at > clock_timestamp()`
	rowNames   = `SELECT r.key FROM locker_row r JOIN pg_stat_activity a ON a.backend_xid = r.xmax
		UNION ALL SELECT pid::text FROM pg_locks WHERE NOT granted`
)

// The cases of a run.
type chooser = func(conformance.Case) bool

// of chooses the cases whose ids begin so.
func of(ids string) chooser {
	id := regexp.MustCompile(`^(` + ids + `)`)
	return func(c conformance.Case) bool { return id.MatchString(c.ID) }
}

// servers are what a store is kept by.
type servers struct {
	url       string
	direct    string // past a pooler
	stop      func() error
	breakable *conformance.Server
}

// durable is a server that keeps what was committed over a crash, though not over one of the
// machine, with room for as many sessions as there are locks and waiters.
func durable(ctx context.Context) (*testenv.Postgres, error) {
	return testenv.StartPostgres(ctx, &testenv.PostgresConfig{Fast: true, Settings: []string{"max_connections = 300"}})
}

func direct(ctx context.Context) (servers, error) {
	srv, err := durable(ctx)
	if err != nil {
		return servers{}, err
	}
	return servers{url: srv.URL(), direct: srv.URL(), stop: srv.Stop, breakable: breakable(srv.InCharge())}, nil
}

// behind starts a server with a PgBouncer in front of it.
func behind(mode string) func(context.Context) (servers, error) {
	return func(ctx context.Context) (servers, error) {
		srv, err := durable(ctx)
		if err != nil {
			return servers{}, err
		}
		bouncer, err := testenv.StartPgBouncer(ctx, srv, &testenv.PgBouncerConfig{Mode: mode, PoolSize: 200})
		if err != nil {
			return servers{}, errors.Join(err, srv.Stop())
		}
		s := servers{
			url: bouncer.URL(), direct: srv.URL(), breakable: breakable(srv.InCharge()),
			stop: func() error { return errors.Join(bouncer.Stop(), srv.Stop()) },
		}
		for _, mend := range []*func(context.Context) error{&s.breakable.Resume, &s.breakable.Restart} {
			server := *mend
			*mend = func(ctx context.Context) error { return errors.Join(server(ctx), bouncer.AwaitServer(ctx)) }
		}
		return s, nil
	}
}

func breakable(i *testenv.InCharge) *conformance.Server {
	return &conformance.Server{Pause: i.Pause, Resume: i.Resume, Kill: i.Kill, Restart: i.Restart}
}

// store is what one run judges.
type store struct {
	start func(ctx context.Context) (servers, error)
	open  func(ctx context.Context, pool, direct *pgxpool.Pool) (locker.Locker, error)
	names string        // a query
	only  chooser       // nil: all cases
	ttl   time.Duration // longer where a request takes more steps; 0: half of the usual one

	servers  servers
	looker   *pgxpool.Pool
	requests atomic.Int64
}

// What the suite's child processes are told of the store.
const (
	urlEnv    = "LOCKER_TEST_CONFORMANCE_URL"
	directEnv = "LOCKER_TEST_CONFORMANCE_DIRECT"
)

// run starts the servers, or in a child process takes those of its parent.
func (s *store) run(t *testing.T) {
	if parent, ok := os.LookupEnv(urlEnv); ok {
		s.servers.url, s.servers.direct = parent, os.Getenv(directEnv)
	} else {
		var err error
		s.servers, err = s.start(t.Context())
		started(t, err)
		t.Cleanup(func() { require.NoError(t, s.servers.stop()) })
	}
	s.looker = connect(t, s.servers.direct)
	conformance.Run(t, conformance.Harness{
		Open: func(ctx context.Context) (locker.Locker, error) { return s.locker(ctx, new(net.Dialer).DialContext) },
		OpenVia: func(ctx context.Context, net *faultnet.Network) (locker.Locker, error) {
			return s.locker(ctx, net.Dial)
		},
		Server: s.servers.breakable,
		TTL:    cmp.Or(s.ttl, conformance.DefaultTTL/2),
		Names: func(ctx context.Context) ([]string, error) {
			rows, _ := s.looker.Query(ctx, s.names, pgx.QueryExecModeExec)
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
		Env:      []string{urlEnv + "=" + s.servers.url, directEnv + "=" + s.servers.direct},
		Requests: s.requests.Load,
		Only:     s.only,
	})
}

func (s *store) locker(ctx context.Context, dial dialer) (locker.Locker, error) {
	p := process{}
	for _, url := range []string{s.servers.url, s.servers.direct} {
		cfg, err := pgxpool.ParseConfig(url)
		if err != nil {
			return nil, err
		}
		cfg.ConnConfig.DialFunc = s.counting(dial)
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, err
		}
		p.pools = append(p.pools, pool)
	}
	var err error
	if p.Locker, err = s.open(ctx, p.pools[0], p.pools[1]); err != nil {
		p.closePools()
		return nil, err
	}
	p.Inspector = p.Locker.(locker.Inspector)
	return p, nil
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// counting counts what is sent to servers, but for the exchange of names and passwords.
func (s *store) counting(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return counted{c, &s.requests}, nil
	}
}

type counted struct {
	net.Conn
	n *atomic.Int64
}

// Write is called once for what is sent together. It begins with the kind of a message: a
// query, or the preparation or the use of a statement.
func (c counted) Write(p []byte) (int, error) {
	switch p[0] {
	case 'Q', 'P', 'B':
		c.n.Add(1)
	}
	return c.Conn.Write(p)
}

// process ends its pools with its Locker. The driver has goroutines for each.
type process struct {
	locker.Locker
	locker.Inspector
	pools []*pgxpool.Pool
}

func (p process) Info() locker.Info { return p.Locker.(interface{ Info() locker.Info }).Info() }

func (p process) Close(ctx context.Context) error {
	err := p.Locker.Close(ctx)
	p.closePools()
	return err
}

// closePools does not wait long: of a connection that was given up the driver asks the
// server, for up to 15 s, to cancel what runs there.
func (p process) closePools() {
	closed := make(chan struct{})
	go func() {
		for _, pool := range p.pools {
			pool.Close()
		}
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}
