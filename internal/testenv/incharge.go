package testenv

import (
	"context"
	"errors"
	"sync"
)

// InCharge breaks the server that is in charge at that moment, of one or several,
// and mends it again. Its methods block until that is done or ctx ends; where they
// wait for several servers, for 30 s at most. It is safe for concurrent use, and does
// one thing at a time: to break a second server before the first is mended is an error.
type InCharge struct {
	find  func(ctx context.Context) (*server, error)
	whole func(ctx context.Context) error

	mu     sync.Mutex
	broken *server
}

// InCharge is this server.
func (s *server) InCharge() *InCharge {
	return &InCharge{
		find:  func(context.Context) (*server, error) { return s, nil },
		whole: func(context.Context) error { return nil },
	}
}

// InCharge is the master.
func (s *Sentinel) InCharge() *InCharge {
	return &InCharge{
		find:  func(ctx context.Context) (*server, error) { return asServer(s.Master(ctx)) },
		whole: s.AwaitReplicas,
	}
}

// InCharge is the node that serves key.
func (c *Cluster) InCharge(key string) *InCharge {
	return &InCharge{
		find:  func(ctx context.Context) (*server, error) { return asServer(c.MasterFor(ctx, key)) },
		whole: c.AwaitOK,
	}
}

func asServer(r *Redis, err error) (*server, error) {
	if err != nil {
		return nil, err
	}
	return &r.server, nil
}

// Pause stops the server in its tracks.
func (i *InCharge) Pause(ctx context.Context) error { return i.breakBy(ctx, (*server).Pause) }

// Kill ends the server at once.
func (i *InCharge) Kill(ctx context.Context) error { return i.breakBy(ctx, (*server).Kill) }

// Resume lets the server that was paused go on, and waits until all servers are
// again what they have to be to each other.
func (i *InCharge) Resume(ctx context.Context) error { return i.mendBy(ctx, (*server).Resume) }

// Restart starts the server that was killed, and waits as Resume does.
func (i *InCharge) Restart(ctx context.Context) error {
	return i.mendBy(ctx, func(s *server) error { return s.Restart(ctx) })
}

func (i *InCharge) breakBy(ctx context.Context, how func(*server) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.broken != nil {
		return errors.New("testenv: a server is broken already")
	}
	s, err := i.find(ctx)
	if err != nil {
		return err
	}
	i.broken = s
	return how(s)
}

func (i *InCharge) mendBy(ctx context.Context, how func(*server) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.broken == nil {
		return errors.New("testenv: no server is broken")
	}
	if err := how(i.broken); err != nil {
		return err // it can be tried again
	}
	i.broken = nil
	return i.whole(ctx)
}
