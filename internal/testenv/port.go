package testenv

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// portTries bounds the search for a port that stays free until the server has bound
// it.
const portTries = 10

// errPortTaken: another process bound the port first.
var errPortTaken = errors.New("port is taken")

// secondPort is how far above a server's port its second one is, on which a Redis in cluster
// mode and an etcd speak to their like.
const secondPort = 10_000

// freePort finds a port of 127.0.0.1 that nobody listens on, and nobody on the second one
// that goes with it: ours are never some other server's second one. Both keep below the
// ports that systems give to outgoing connections (Linux: from 32768). One of those could
// be taken, while the server is down, by the very client that tries to reach it, and
// Restart would fail.
func freePort() (int, error) {
	const lowest, count = 10_000, secondPort
	var err error
	for range portTries {
		port := lowest + rand.IntN(count)
		if err = errors.Join(free(port), free(port+secondPort)); err == nil {
			return port, nil
		}
	}
	return 0, err
}

// free is nil if nobody listens on the port.
func free(port int) error {
	l, err := net.Listen("tcp4", local(port))
	if err != nil {
		return err
	}
	return l.Close()
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
