package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncerConfig configures a private PgBouncer. A nil *PgBouncerConfig stands for
// the defaults.
type PgBouncerConfig struct {
	// Mode is how long a client keeps a connection to the server: for a "session",
	// a "transaction" or a "statement". Empty is "session", PgBouncer's default.
	Mode string

	// PoolSize is the number of connections to the server for each database and
	// role. 0 is PgBouncer's default, 20.
	PoolSize int

	// Settings are further lines of the section [pgbouncer], such as
	// "max_client_conn = 5". They come last, so they win. The port and the log have
	// to stay as they are.
	Settings []string
}

// PgBouncer is one PgBouncer, in front of a Postgres. It is safe for concurrent use.
// As root it is run by the user postgres. It has nothing to save: Stop and Restart
// kill it. Other than by default, it tries a server that was down again every 100 ms.
type PgBouncer struct{ server }

var pgBouncerServer = program{
	name:   "pgbouncer",
	ready:  []string{"process up"},
	finish: syscall.SIGKILL,
	quit:   syscall.SIGKILL,
}

const (
	bouncerConfName = "pgbouncer.ini"
	bouncerListName = "users.txt"
)

// StartPgBouncer starts a private PgBouncer in front of a server that StartPostgres or
// StartPostgresStandby started, for all its databases and roles, and waits until it
// answers. ctx bounds the start only. Stop has to be called. If PgBouncer
// is not installed, the error matches ErrNotInstalled.
func StartPgBouncer(ctx context.Context, of *Postgres, cfg *PgBouncerConfig) (*PgBouncer, error) {
	if cfg == nil {
		cfg = &PgBouncerConfig{}
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if of.dir == "" {
		return nil, ErrNotOurs
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	exe, err := findPgBouncer()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "locker-pgbouncer-")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{server: server{dir: dir, program: pgBouncerServer, cmd: []string{exe, bouncerConfName}, as: as}}
	b.answers = b.Ping
	err = b.start(ctx, func(port int) error { return b.configure(of, port, cfg) })
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (cfg *PgBouncerConfig) check() error {
	if !slices.Contains([]string{"", "session", "transaction", "statement"}, cfg.Mode) {
		return fmt.Errorf("testenv: PgBouncer has no mode %q", cfg.Mode)
	}
	if cfg.PoolSize < 0 {
		return fmt.Errorf("testenv: a pool of %d connections", cfg.PoolSize)
	}
	return nil
}

// findPgBouncer: Debian has it where ordinary users do not look.
func findPgBouncer() (string, error) {
	exe, err := exec.LookPath("pgbouncer")
	if errors.Is(err, exec.ErrNotFound) {
		if exe, sbin := exec.LookPath("/usr/sbin/pgbouncer"); sbin == nil {
			return exe, nil
		}
	}
	return exe, err
}

// configure writes the files that PgBouncer reads. Roles that are not in its list it
// looks up on the server.
func (b *PgBouncer) configure(of *Postgres, port int, cfg *PgBouncerConfig) error {
	host, serverPort, err := net.SplitHostPort(of.addr)
	if err != nil {
		return err
	}
	lines := []string{
		"[databases]",
		"* = host=" + host + " port=" + serverPort,
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		"listen_port = " + strconv.Itoa(port),
		"unix_socket_dir =",
		"auth_type = scram-sha-256",
		"auth_file = " + bouncerListName,
		"auth_user = " + superuser,
		"admin_users = " + superuser,
		"server_login_retry = 0.1", // by default it leaves a server that was down alone for 15 s
	}
	if cfg.Mode != "" {
		lines = append(lines, "pool_mode = "+cfg.Mode)
	}
	if cfg.PoolSize != 0 {
		lines = append(lines, "default_pool_size = "+strconv.Itoa(cfg.PoolSize))
	}
	lines = append(lines, cfg.Settings...)
	conf := strings.Join(lines, "\n") + "\n"
	list := fmt.Sprintf("%q %q\n", superuser, superuser)
	return errors.Join(
		os.WriteFile(filepath.Join(b.dir, bouncerConfName), []byte(conf), 0o600),
		os.WriteFile(filepath.Join(b.dir, bouncerListName), []byte(list), 0o600),
		b.as.own(b.dir),
	)
}

// URL is the server's URL through the PgBouncer.
func (b *PgBouncer) URL() string { return postgresURL(b.addr, "postgres") }

// Through turns one of the server's URLs, such as NewDatabase and AddRole return,
// into one through the PgBouncer.
func (b *PgBouncer) Through(serverURL string) (string, error) { return withHost(serverURL, b.addr) }

// Ping is nil if the PgBouncer answers for itself, whether the server does or not. It
// blocks until the answer or ctx's end.
func (b *PgBouncer) Ping(ctx context.Context) error {
	return askPostgres(ctx, postgresURL(b.addr, "pgbouncer"), func(*pgconn.PgConn) error { return nil })
}

// AwaitServer waits until the PgBouncer serves its clients again: for a moment after the
// server is back it still refuses them. ctx, or 30 s, bound the wait.
func (b *PgBouncer) AwaitServer(ctx context.Context) error {
	return until(ctx, "the server behind PgBouncer", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		return askPostgres(ctx, b.URL(), func(c *pgconn.PgConn) error { return c.Exec(ctx, "SELECT 1").Close() })
	})
}
