package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/go-locker/locker"
)

// instance is one copy of the application, which serves its endpoint.
type instance struct {
	*endpoint
	url    string
	server *http.Server
	served chan struct{} // closed when it accepts no more
	err    error         // why; from then on
}

// grace is what each step of a shutdown gets after the patience of its caller is over.
const grace = 5 * time.Second

// serve starts an instance on address. It takes over locks, and closes it in the end.
func serve(ctx context.Context, address string, s settings, locks locker.Locker, jobs map[string]job, log func(string, ...any)) (*instance, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, errors.Join(err, locks.Close(ctx))
	}
	e := &endpoint{settings: s, locks: locks, runs: newRuns(log), jobs: jobs, log: log}
	in := &instance{
		endpoint: e,
		url:      "http://" + listener.Addr().String(),
		server:   &http.Server{Handler: e.handler(), ReadHeaderTimeout: 5 * time.Second},
		served:   make(chan struct{}),
	}
	go func() {
		in.err = in.server.Serve(listener)
		close(in.served)
	}()
	return in, nil
}

// shutdown ends the instance in the order in which one thing needs the other: jobs,
// which are given until ctx ends, and whose results can still be asked for; requests,
// which take locks; the Locker, which gives back what is left. That may be the lock of a
// job that does not look at its context: then only its token stops what it still writes.
func (in *instance) shutdown(ctx context.Context) error {
	in.runs.drain(ctx, grace)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := in.server.Shutdown(ctx)
	<-in.served
	if !errors.Is(in.err, http.ErrServerClosed) {
		err = errors.Join(err, in.err)
	}
	return errors.Join(err, in.locks.Close(ctx))
}
