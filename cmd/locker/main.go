package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // what the driver logs, errors and events tell
	a := newApp(os.Stdout, os.Stderr)
	code := a.run(context.Background(), os.Args)
	if a.interrupted {
		dieOfInterrupt() // to a shell the code is the same, but it stops its script only then
	}
	os.Exit(code)
}
