package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
)

const (
	maxReplicas           = 100
	maxReplicaTimeout     = time.Minute
	defaultReplicaTimeout = 500 * time.Millisecond
)

// ErrReplicas: fewer replicas than Config.Replicas have acknowledged a write in time.
// Returned, as a *ReplicasError, by TryAcquire and Extend, and joined to the context's
// error by an Acquire that met it last. Waiting may cure it.
var ErrReplicas = errors.New("redislock: too few replicas have acknowledged")

// ReplicasError says how many replicas were wanted, and how many had acknowledged a
// write when the time was up. It matches ErrReplicas.
type ReplicasError struct{ Want, Got int }

func (e *ReplicasError) Error() string {
	return fmt.Sprintf("%v: %d of %d", ErrReplicas, e.Got, e.Want)
}

// Is reports that a ReplicasError is ErrReplicas.
func (e *ReplicasError) Is(target error) bool { return target == ErrReplicas }

// replicas is what a write waits for. The zero value is nothing.
type replicas struct {
	want    int
	timeout time.Duration
}

func newReplicas(cfg *Config, readTimeout time.Duration) (replicas, error) {
	r := replicas{cfg.Replicas, cfg.ReplicaTimeout}
	switch {
	case r.want < 0 || r.want > maxReplicas:
		return r, invalidf("Replicas is %d, not from 0 to %d", r.want, maxReplicas)
	case r.want == 0 && r.timeout != 0:
		return r, invalidf("ReplicaTimeout without Replicas")
	case r.timeout != 0 && (r.timeout < time.Millisecond || r.timeout > maxReplicaTimeout):
		return r, invalidf("ReplicaTimeout is %v, not from 1ms to %v", r.timeout, maxReplicaTimeout)
	case readTimeout > 0 && r.timeout >= readTimeout:
		return r, invalidf("ReplicaTimeout is %v, not less than the client's ReadTimeout of %v", r.timeout, readTimeout)
	}
	if r.timeout == 0 {
		r.timeout = defaultReplicaTimeout
		if readTimeout > 0 {
			r.timeout = min(r.timeout, readTimeout/2)
		}
	}
	return r, nil
}

// lateness is how late the server may be to find that the time is up: it looks ten
// times a second, unless there is something else to do.
const lateness = 100 * time.Millisecond

// wait is the command that waits for the replicas of what its connection has written
// before, nil if there is nothing to wait for. It should be answered before ctx ends:
// an answer that is not read costs a connection.
func (r replicas) wait(ctx context.Context, ttl time.Duration) *once {
	if r.want == 0 {
		return nil
	}
	d := min(r.timeout, ttl/3)
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		d = min(d, max(left-2*lateness, left/3))
	}
	// Zero would be without end.
	return &once{redis.NewCmd(ctx, "wait", r.want, max(d.Milliseconds(), 1))}
}

// waited reads what wait's command came to.
func (r replicas) waited(cmd *once) error {
	if cmd == nil {
		return nil
	}
	got, err := cmd.Int()
	if err == nil && got < r.want {
		err = &ReplicasError{Want: r.want, Got: got}
	}
	return err
}

// write runs s, which writes for a lease of ttl, and waits for the replicas if there
// are to be any: unsafe then says that too few of them are known to have the write.
func (b *backend) write(ctx context.Context, s script, c call, ttl time.Duration) (reply any, unsafe, err error) {
	if b.replicas.want == 0 {
		reply, err = b.run(ctx, s, c.keys, c.args...)
		return reply, nil, err
	}
	node, err := b.nodeOf(ctx, c.keys[0])
	if err != nil {
		return nil, nil, err
	}
	for range 1 + maxRedirects {
		b.runAll(ctx, node, s, []call{c}, ttl, func(_ int, r any, u, e error) { reply, unsafe, err = r, u, e })
		if b.cluster == nil || !isRedirect(err) {
			break
		}
		addr, asked := redis.IsAskError(err)
		if !asked {
			addr, _ = redis.IsMovedError(err)
		}
		if next := b.nodeAt(ctx, addr); next != nil {
			node, c.asking = next, asked
		}
	}
	return reply, unsafe, err
}

// maxRedirects is how often a command is sent on to another node.
const maxRedirects = 2

// nodeOf is the server that key is written on. A ClusterClient would send a WAIT to
// any node, so the node's own client is used; redirections are for us to follow then.
func (b *backend) nodeOf(ctx context.Context, key string) (pipeliner, error) {
	if b.cluster == nil {
		return b.rdb, nil
	}
	return b.cluster.MasterForKey(ctx, key)
}

// nodeAt is the master at addr, by a new look at the cluster. It is nil if there is
// none.
func (b *backend) nodeAt(ctx context.Context, addr string) (found pipeliner) {
	nodes, _ := b.nodes(ctx) // which looks
	for _, node := range nodes {
		if c, ok := node.(*redis.Client); ok && c.Options().Addr == addr {
			return c
		}
	}
	return nil
}

// undoUnsafe takes back a grant that too few replicas have. What they have of it
// already ends with its lease.
func undoUnsafe(ctx context.Context, g *grant, unsafe error) (locker.Grant, error) {
	if !errors.Is(unsafe, ErrReplicas) {
		return g, unsafe // no answer: nor would the undo get one soon
	}
	if err := g.Release(ctx); err != nil && !errors.Is(err, locker.ErrLost) {
		return g, unsafe
	}
	return nil, unsafe
}
