package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// made is what was made for tests on a server.
type made struct {
	mu   sync.Mutex
	undo []string
}

// Ping is nil if the server lets its superuser in, or whom the URL of a server that
// was given names. It blocks until the answer or ctx's end.
func (p *Postgres) Ping(ctx context.Context) error {
	return p.ask(ctx, func(*pgconn.PgConn) error { return nil })
}

// Exec runs statements, separated by semicolons, in the database of URL. It blocks
// until the answer or ctx's end.
func (p *Postgres) Exec(ctx context.Context, sql string) error {
	return p.ask(ctx, func(c *pgconn.PgConn) error { return c.Exec(ctx, sql).Close() })
}

// NewDatabase makes an empty database, and returns the server's URL for it. It blocks
// until it is there or ctx ends.
func (p *Postgres) NewDatabase(ctx context.Context) (string, error) {
	name := "test_" + strings.ToLower(rand.Text())
	// Other than template1, which is the default, template0 never has a session.
	if err := p.make(ctx, "CREATE DATABASE "+name+" TEMPLATE template0", "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
		return "", err
	}
	u, err := url.Parse(p.url)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// AddRole makes a role that may log in, with the options of SQL's CREATE ROLE, such
// as "CONNECTION LIMIT 1". It returns the URL of a database, which is URL's or one of
// NewDatabase's, for that role. It blocks until the answer or ctx's end.
func (p *Postgres) AddRole(ctx context.Context, database, name, password string, options ...string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("testenv: the database's URL cannot be read") // there is a password in it
	}
	quoted := pgx.Identifier{name}.Sanitize()
	create := "CREATE ROLE " + quoted + " LOGIN PASSWORD " + quote(password) + " " + strings.Join(options, " ")
	if err := p.make(ctx, create, "DROP ROLE "+quoted); err != nil {
		return "", err
	}
	u.User = url.UserPassword(name, password)
	return u.String(), nil
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// make runs a statement, and keeps the one that undoes it.
func (p *Postgres) make(ctx context.Context, do, undo string) error {
	if err := p.Exec(ctx, do); err != nil {
		return err
	}
	p.made.mu.Lock()
	defer p.made.mu.Unlock()
	p.made.undo = append(p.made.undo, undo)
	return nil
}

// removeMade undoes what make has done, databases before the roles that own what is
// in them.
func (p *Postgres) removeMade() error {
	p.made.mu.Lock()
	defer p.made.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	var errs []error
	for _, first := range []string{"DROP DATABASE", "DROP ROLE"} {
		for _, undo := range p.made.undo {
			if strings.HasPrefix(undo, first) {
				errs = append(errs, p.Exec(ctx, undo))
			}
		}
	}
	p.made.undo = nil
	return errors.Join(errs...)
}

func (p *Postgres) ask(ctx context.Context, statements func(*pgconn.PgConn) error) error {
	return askPostgres(ctx, p.url, statements)
}

// askPostgres sends statements over a connection that lives as long as the call.
func askPostgres(ctx context.Context, url string, statements func(*pgconn.PgConn) error) error {
	c, err := pgconn.Connect(ctx, url)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	err = statements(c)
	return errors.Join(err, c.Close(ctx))
}

// value is the one value that a query returns.
func (p *Postgres) value(ctx context.Context, query string) (value string, err error) {
	err = p.ask(ctx, func(c *pgconn.PgConn) error {
		results, err := c.Exec(ctx, query).ReadAll()
		if err != nil {
			return err
		}
		value = string(results[0].Rows[0][0])
		return nil
	})
	return value, err
}
