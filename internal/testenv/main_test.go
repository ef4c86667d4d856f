package testenv

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asOwner, set in the environment, makes this test binary a program that starts the
// server it names, prints its address and process id, and waits for the end of its
// input. It is what a test kills to see what becomes of the server.
const asOwner = "LOCKER_TESTENV_OWNER"

const (
	ownsRedis          = "redis"
	ownsPostgres       = "postgres"
	ownsPausedPostgres = "paused postgres"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(asOwner); kind != "" {
		ownServer(kind)
	}
	goleak.VerifyTestMain(m)
}

func ownServer(kind string) {
	s, err := startOwned(kind)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.addr, s.PID())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0) // without Stop
}

func startOwned(kind string) (*server, error) {
	if kind == ownsRedis {
		r, err := StartRedis(context.Background(), nil)
		if err != nil {
			return nil, err
		}
		return &r.server, nil
	}
	p, err := StartPostgres(context.Background(), &PostgresConfig{Fast: true})
	if err != nil {
		return nil, err
	}
	if kind == ownsPausedPostgres {
		err = p.Pause()
	}
	return &p.server, err
}
