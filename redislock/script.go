package redislock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed release.lua
	releaseSource string
	//go:embed renew.lua
	renewSource string
	//go:embed inspect.lua
	inspectSource string

	acquireScript = newScript(acquireSource)
	releaseScript = newScript(releaseSource)
	renewScript   = newScript(renewSource)
	inspectScript = newScript(inspectSource)
)

// script is a Lua script and the name by which a server's cache knows it. None of
// them begins with a "#!" line: a server that is out of memory refuses those
// altogether, and a release has to work then.
type script struct{ source, sha string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source: source, sha: hex.EncodeToString(sum[:])}
}

// once is a command that the driver sends one time only. A re-sent release would
// find its key gone and report a loss; and only an error that belongs to one
// sending tells whether the server may have seen the command. What is worth
// sending again is sent again by the Locker.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// byName is the command that runs s out of the server's cache.
func (s script) byName(ctx context.Context, keys []string, args ...any) once {
	return s.command(ctx, "evalsha", s.sha, keys, args)
}

// bySource is the command that runs s and puts it into the server's cache.
func (s script) bySource(ctx context.Context, keys []string, args ...any) once {
	return s.command(ctx, "eval", s.source, keys, args)
}

func (s script) command(ctx context.Context, name, text string, keys []string, args []any) once {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, text, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	// Told where the keys are, a ClusterClient does not ask the server for a table
	// of all commands first, or again and again if it may not have it.
	cmd.SetFirstKeyPos(3)
	cmd.SetStepCount(1)
	return once{cmd}
}

// run runs s in one request, or in two if the server does not have it yet.
func (b *backend) run(ctx context.Context, s script, keys []string, args ...any) (any, error) {
	cmd := s.byName(ctx, keys, args...)
	err := b.rdb.Process(ctx, cmd)
	if err != nil && isUncached(err) {
		cmd = s.bySource(ctx, keys, args...)
		err = b.rdb.Process(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

// call is one run of a script.
type call struct {
	keys   []string
	args   []any
	asking bool // of a node that takes over the slot
}

// pipeliner is a client, of all servers or of one.
type pipeliner interface{ Pipeline() redis.Pipeliner }

// runAll runs s for each of the calls, in one pipeline, and in a second one what the
// server's script cache did not serve. Each call is answered once. If they write, for
// leases of at least ttl, each pipeline ends with the wait for the replicas, and
// unsafe is what write says of it; rdb has to be one server then. With a ttl of zero
// they do not write.
func (b *backend) runAll(ctx context.Context, rdb pipeliner, s script, calls []call, ttl time.Duration,
	answer func(i int, reply any, unsafe, err error),
) {
	batch := make([]int, len(calls))
	for i := range batch {
		batch[i] = i
	}
	for _, command := range []func(script, context.Context, []string, ...any) once{script.byName, script.bySource} {
		cmds := make([]once, len(batch))
		pipe := rdb.Pipeline()
		for n, i := range batch {
			if calls[i].asking {
				pipe.Do(ctx, "asking")
			}
			cmds[n] = command(s, ctx, calls[i].keys, calls[i].args...)
			_ = pipe.Process(ctx, cmds[n])
		}
		var wait *once
		if ttl > 0 {
			if wait = b.replicas.wait(ctx, ttl); wait != nil {
				_ = pipe.Process(ctx, wait)
			}
		}
		_, _ = pipe.Exec(ctx) // its error is in the commands
		unsafe := b.replicas.waited(wait)
		var uncached []int
		for n, i := range batch {
			if err := cmds[n].Err(); isUncached(err) {
				uncached = append(uncached, i)
			} else {
				answer(i, cmds[n].Val(), unsafe, err)
			}
		}
		if len(uncached) == 0 {
			return
		}
		batch = uncached
	}
}

// isUncached reports that the server's script cache is empty: a restart, a
// failover, SCRIPT FLUSH.
func isUncached(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// unexpected is the error for a reply that none of our scripts gives.
func unexpected(reply any) error {
	return fmt.Errorf("redislock: unexpected reply of type %T", reply)
}
