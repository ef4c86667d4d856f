package testenv

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asOwner, set in the environment, makes this test binary a program that starts a
// Redis, prints where, and waits for the end of its input. It is what a test kills
// to see what becomes of the server.
const asOwner = "LOCKER_TESTENV_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(asOwner) != "" {
		ownServer()
	}
	goleak.VerifyTestMain(m)
}

func ownServer() {
	r, err := StartRedis(context.Background(), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(r.Addr(), r.dir)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0) // without Stop
}
