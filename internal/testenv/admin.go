package testenv

import (
	"context"
	"net/url"
)

// AddUser adds a user that may do what the rules say, such as "~app:*", "&*" and
// "+@all", in the form of Redis' ACL SETUSER, and nothing else. It returns the server's
// URL for that user. Of a user that is there already nothing is left. Restart
// forgets the users. It blocks until the answer or ctx's end.
func (r *Redis) AddUser(ctx context.Context, name, password string, rules ...string) (string, error) {
	u, err := url.Parse(r.url)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(name, password)
	command := []any{"ACL", "SETUSER", name, "reset", "on", ">" + password}
	for _, rule := range rules {
		command = append(command, rule)
	}
	if err := r.send(ctx, command...); err != nil {
		return "", err
	}
	return u.String(), nil
}

// ConfigSet changes a setting of the running server, such as "maxmemory" to "2mb".
// Restart takes it back, unless Redis was told to rewrite its file. It blocks until
// the answer or ctx's end.
func (r *Redis) ConfigSet(ctx context.Context, name, value string) error {
	return r.send(ctx, "CONFIG", "SET", name, value)
}

// DropReplicas breaks the connections of the replicas. What is written from then on
// reaches one only after it has connected again, which a paused one does not. It
// blocks until the answer or ctx's end.
func (r *Redis) DropReplicas(ctx context.Context) error {
	return r.send(ctx, "CLIENT", "KILL", "TYPE", "replica")
}

// Promote makes a replica a master (REPLICAOF NO ONE). It blocks until the answer or
// ctx's end.
func (r *Redis) Promote(ctx context.Context) error {
	return r.send(ctx, "REPLICAOF", "NO", "ONE")
}
