package testenv

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asOwner, set in the environment, makes this test binary a program that starts what
// it names, prints its address and process id, and waits for the end of its
// input. It is what a test kills to see what becomes of the server.
const asOwner = "LOCKER_TESTENV_OWNER"

const (
	ownsRedis          = "redis"
	ownsPostgres       = "postgres"
	ownsPausedPostgres = "paused postgres"
	ownsNamespace      = "namespace"
	ownsEtcd           = "etcd"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(asOwner); kind != "" {
		ownServer(kind)
	}
	goleak.VerifyTestMain(m, Leaving...)
}

func ownServer(kind string) {
	at, pid, err := startOwned(kind)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(at, pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0) // without Stop
}

// startOwned returns the address of what it starts, or its name, and the process id.
func startOwned(kind string) (at string, pid int, err error) {
	ctx := context.Background()
	switch kind {
	case ownsRedis:
		r, err := StartRedis(ctx, nil)
		if err != nil {
			return "", 0, err
		}
		return r.addr, r.PID(), nil
	case ownsEtcd:
		e, err := StartEtcd(ctx, nil)
		if err != nil {
			return "", 0, err
		}
		return e.addr, e.PID(), nil
	case ownsNamespace:
		n, err := StartNamespace(ctx)
		if err != nil {
			return "", 0, err
		}
		return n.link, n.holder.pid(), nil
	}
	p, err := StartPostgres(ctx, &PostgresConfig{Fast: true})
	if err != nil {
		return "", 0, err
	}
	if kind == ownsPausedPostgres {
		err = p.Pause()
	}
	return p.addr, p.PID(), err
}
