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
	find  func(ctx context.Context) (breakable, error)
	whole func(ctx context.Context) error

	mu     sync.Mutex
	broken breakable
}

// breakable is one server of any kind.
type breakable interface {
	Pause() error
	Resume() error
	Kill() error
	Restart(ctx context.Context) error
}

// InCharge is this server.
func (s *server) InCharge() *InCharge {
	return &InCharge{
		find:  func(context.Context) (breakable, error) { return s, nil },
		whole: func(context.Context) error { return nil },
	}
}

// InCharge is the master.
func (s *Sentinel) InCharge() *InCharge {
	return &InCharge{
		find:  func(ctx context.Context) (breakable, error) { return s.Master(ctx) },
		whole: s.AwaitReplicas,
	}
}

// InCharge is the node that serves key.
func (c *Cluster) InCharge(key string) *InCharge {
	return &InCharge{
		find:  func(ctx context.Context) (breakable, error) { return c.MasterFor(ctx, key) },
		whole: c.AwaitOK,
	}
}

// InCharge is the leader.
func (c *EtcdCluster) InCharge() *InCharge {
	return &InCharge{
		find:  func(ctx context.Context) (breakable, error) { return c.Leader(ctx) },
		whole: c.AwaitOK,
	}
}

// Pause stops the server in its tracks.
func (i *InCharge) Pause(ctx context.Context) error { return i.breakBy(ctx, breakable.Pause) }

// Kill ends the server at once.
func (i *InCharge) Kill(ctx context.Context) error { return i.breakBy(ctx, breakable.Kill) }

// CutOff separates the server from its peers, but not from its clients. Only members of an
// EtcdCluster can be cut off: for others the error matches errors.ErrUnsupported.
func (i *InCharge) CutOff(ctx context.Context) error {
	return i.breakBy(ctx, func(s breakable) error { return onEtcd(s, (*Etcd).CutOff) })
}

// Resume lets the server that was paused go on, and waits until all servers are
// again what they have to be to each other.
func (i *InCharge) Resume(ctx context.Context) error { return i.mendBy(ctx, breakable.Resume) }

// Restart starts the server that was killed, and waits as Resume does.
func (i *InCharge) Restart(ctx context.Context) error {
	return i.mendBy(ctx, func(s breakable) error { return s.Restart(ctx) })
}

// Reconnect lets the server that was cut off reach its peers, and waits as Resume does.
func (i *InCharge) Reconnect(ctx context.Context) error {
	return i.mendBy(ctx, func(s breakable) error { return onEtcd(s, (*Etcd).Reconnect) })
}

func onEtcd(s breakable, do func(*Etcd) error) error {
	e, ok := s.(*Etcd)
	if !ok {
		return errors.ErrUnsupported
	}
	return do(e)
}

func (i *InCharge) breakBy(ctx context.Context, how func(breakable) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.broken != nil {
		return errors.New("testenv: a server is broken already")
	}
	s, err := i.find(ctx)
	if err != nil {
		return err
	}
	err = how(s)
	if !errors.Is(err, errors.ErrUnsupported) {
		i.broken = s
	}
	return err
}

func (i *InCharge) mendBy(ctx context.Context, how func(breakable) error) error {
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
