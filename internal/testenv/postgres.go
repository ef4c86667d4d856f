package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// PostgresConfig configures a private Postgres. A nil *PostgresConfig stands for the
// defaults.
type PostgresConfig struct {
	// Fast leaves it to the system when to write to the disk (fsync off). What was
	// committed is still there after Kill and Restart, but not after the machine's
	// end.
	Fast bool

	// Listen are addresses of this machine, with their networks, on which the server
	// is to be reached besides 127.0.0.1, such as a Namespace's Host. Who comes from
	// such a network needs a password, as everybody does. At makes URLs for them.
	Listen []netip.Prefix

	// Settings are further lines of postgresql.conf, such as "max_connections = 5".
	// They come last, so they win, except over the port and the address.
	Settings []string
}

// Postgres is one PostgreSQL server. It is safe for concurrent use. As root it is run
// by the user postgres, who has to be able to reach the directory for temporary files.
//
// Its pauses and ends are those of all its processes: PID is the first one's. It ends
// by an immediate shutdown in Stop, and by a fast one in Restart. Neither waits for
// clients; the latter waits for its standbys, and kills after 5 s if one is paused.
type Postgres struct {
	server
	url      string
	programs postgresPrograms
	made     made
}

var postgresServer = program{
	name:   "postgres",
	ready:  []string{"ready to accept connections", "ready to accept read-only connections"},
	finish: syscall.SIGINT,
	quit:   syscall.SIGQUIT,
	family: true,
}

// dataName is the name of the data directory in the server's.
const dataName = "data"

// superuser is the name and the password of the role that a server has from its start.
// Others are kept out by the address, not by this.
const superuser = "postgres"

// StartPostgres starts a private server and waits until it answers. ctx bounds the
// start only. Stop has to be called. If Postgres is not installed, the error matches
// ErrNotInstalled.
//
// The first start of a version takes seconds: it makes the data that later ones copy
// from the user's cache directory, locker-testenv there. That may be removed at any
// time.
func StartPostgres(ctx context.Context, cfg *PostgresConfig) (*Postgres, error) {
	if cfg == nil {
		cfg = &PostgresConfig{}
	}
	for _, at := range cfg.Listen {
		if !at.IsValid() {
			return nil, errors.New("testenv: an address to listen on that is none")
		}
	}
	return startPostgres(ctx, cfg.Listen, func(p *Postgres) error {
		if err := p.copyData(ctx); err != nil {
			return err
		}
		return errors.Join(p.appendConf("postgresql.conf", cfg.lines()), p.appendConf("pg_hba.conf", cfg.access()))
	})
}

// lines are the lines of postgresql.conf that the config stands for.
func (cfg *PostgresConfig) lines() []string {
	lines := []string{
		"unix_socket_directories = ''",
		"dynamic_shared_memory_type = mmap", // in the directory, and removed with it
		"max_wal_size = 1GB",                // as is the default with larger segments
		"wal_keep_size = 256MB",             // for standbys that are paused
	}
	if cfg.Fast {
		lines = append(lines, "fsync = off", "full_page_writes = off")
	}
	return append(lines, cfg.Settings...)
}

// access are the lines of pg_hba.conf that the config stands for.
func (cfg *PostgresConfig) access() []string {
	var lines []string
	for _, at := range cfg.Listen {
		lines = append(lines, strings.Join([]string{"host", "all", "all", at.Masked().String(), "scram-sha-256"}, " "))
	}
	return lines
}

// startPostgres starts a server on the data that prepare makes in its directory.
func startPostgres(ctx context.Context, listen []netip.Prefix, prepare func(*Postgres) error) (*Postgres, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	programs, err := findPostgres()
	if err != nil {
		return nil, err
	}
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	p := &Postgres{server: server{program: postgresServer, as: as}, programs: programs}
	p.answers, p.leftover = p.Ping, p.removeSharedMemory
	if p.dir, err = os.MkdirTemp("", "locker-postgres-"); err != nil {
		return nil, err
	}
	err = as.own(p.dir)
	if err == nil {
		err = prepare(p)
	}
	if err != nil {
		return nil, errors.Join(err, p.clear())
	}
	addrs := "127.0.0.1"
	for _, at := range listen {
		addrs += "," + at.Addr().String()
	}
	err = p.start(ctx, func(port int) error {
		p.url = postgresURL(p.addr, "postgres")
		p.cmd = []string{programs.postgres, "-D", dataName, "-h", addrs, "-p", strconv.Itoa(port)}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// postgresURL is that of a database for the superuser.
func postgresURL(addr, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, superuser), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// appendConf adds lines to a file of the server's settings.
func (p *Postgres) appendConf(name string, lines []string) error {
	f, err := os.OpenFile(filepath.Join(p.dir, dataName, name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	return errors.Join(err, f.Close())
}

// removeSharedMemory removes what a Postgres that was killed leaves: a small segment
// that shows whether its data is in use. Its id stands at the end of the seventh
// line of a file that an orderly end removes.
func (p *Postgres) removeSharedMemory() error {
	text, err := os.ReadFile(filepath.Join(p.dir, dataName, "postmaster.pid"))
	lines := bytes.Split(text, []byte("\n"))
	if err != nil || len(lines) < 7 {
		return nil //nolint:nilerr // there is none yet, or none any more
	}
	var key uint64
	var id int
	if _, err := fmt.Sscan(string(lines[6]), &key, &id); err != nil {
		return err
	}
	return removeSharedMemory(id)
}

// AnyPostgres is for tests that do without Pause, Kill and Restart and share their
// server with others: it hands back the one that LOCKER_TEST_POSTGRES_URL names, for
// which those methods return ErrNotOurs, and Stop removes only what NewDatabase and
// AddRole made. The user in it has to be allowed to make databases and roles. If the
// variable is not set, it is StartPostgres with Fast. A server that was named and cannot
// be reached is an error, and no reason to skip.
func AnyPostgres(ctx context.Context) (*Postgres, error) {
	raw := os.Getenv("LOCKER_TEST_POSTGRES_URL")
	if raw == "" {
		return StartPostgres(ctx, &PostgresConfig{Fast: true})
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		// Without the URL: there may be a password in it.
		return nil, errors.New("testenv: LOCKER_TEST_POSTGRES_URL is not a URL such as postgres://user@localhost:5432/postgres")
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	p := &Postgres{server: server{addr: net.JoinHostPort(u.Hostname(), port)}, url: raw}
	if err := p.Ping(ctx); err != nil {
		return nil, fmt.Errorf("testenv: the server of LOCKER_TEST_POSTGRES_URL: %w", err)
	}
	return p, nil
}

// URL is that of the database postgres for a superuser, as pgx and libpq read it:
// "postgres://user:password@127.0.0.1:port/postgres?sslmode=disable". For a server
// that was given it is the URL that was.
func (p *Postgres) URL() string { return p.url }

// At turns one of the server's URLs, such as NewDatabase and AddRole return, into one
// for an address on which it listens.
func (p *Postgres) At(serverURL string, addr netip.Addr) (string, error) {
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		return "", err
	}
	return withHost(serverURL, net.JoinHostPort(addr.String(), port))
}

func withHost(serverURL, host string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("testenv: the server's URL cannot be read") // there is a password in it
	}
	u.Host = host
	return u.String(), nil
}

// Stop ends the server and removes its directory. It asks first and kills after 5 s.
// A second Stop does nothing. Of a server that was given it removes the databases and
// roles that were made for tests, within 5 s.
func (p *Postgres) Stop() error {
	if p.dir == "" {
		return p.removeMade()
	}
	return p.server.Stop()
}
