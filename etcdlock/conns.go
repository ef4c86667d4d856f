package etcdlock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// dialer makes a connection, without encryption.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// conns are the connections of a client that is ours. gRPC goes on using one over which
// nothing comes any more until its own probes fail, which takes longer than a short lease
// lasts.
type conns struct {
	dialer dialer

	mu   sync.Mutex
	live map[*conn]struct{}
}

// conn knows when something was read from it last.
type conn struct {
	net.Conn
	of      *conns
	heard   atomic.Pointer[time.Time]
	dropped atomic.Bool
}

var errSilent = errors.New("etcdlock: no answer from the server: its connection was given up")

func (cs *conns) dial(ctx context.Context, address string) (net.Conn, error) {
	made, err := cs.dialer(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: made, of: cs}
	c.note()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.live[c] = struct{}{}
	return c, nil
}

// drop ends the connections over which nothing has come since a request was sent. One that
// had nothing to carry goes too, and is made anew.
func (cs *conns) drop(sent time.Time) {
	cs.mu.Lock()
	var silent []*conn
	for c := range cs.live {
		if c.heard.Load().Before(sent) {
			silent = append(silent, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range silent {
		c.dropped.Store(true)
		_ = c.Close()
	}
}

func (c *conn) note() {
	now := time.Now()
	c.heard.Store(&now)
}

func (c *conn) Read(p []byte) (n int, err error) {
	if n, err = c.Conn.Read(p); n > 0 {
		c.note()
	}
	if err != nil && c.dropped.Load() {
		err = errSilent
	}
	return n, err
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.live, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
