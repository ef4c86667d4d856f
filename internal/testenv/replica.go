package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// StartReplica starts a replica of a server that StartRedis started, and returns
// when it has acknowledged a write. It refuses writes, as is Redis' default. ctx
// bounds the start only. Stop has to be called.
func StartReplica(ctx context.Context, of *Redis, cfg *RedisConfig) (*Redis, error) {
	if cfg == nil {
		cfg = &RedisConfig{}
	}
	host, port, err := net.SplitHostPort(of.Addr())
	if err != nil {
		return nil, err
	}
	r, err := startServer(ctx, cfg.lines("replicaof "+host+" "+port))
	if err != nil {
		return nil, err
	}
	if err := until(ctx, "the replica", func(ctx context.Context) error { return of.replicates(ctx, r) }); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// replicates is nil if all the replicas acknowledge a write that it makes. That a
// replica is shown as online is not enough: it may not get any writes for a second.
// The write is undone, in the same step.
func (r *Redis) replicates(ctx context.Context, replicas ...*Redis) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return r.ask(ctx, func(c *redis.Client) error {
		key, err := servedKey(ctx, c)
		if err != nil {
			return err
		}
		pipe := c.TxPipeline()
		pipe.Set(ctx, key, "", time.Second)
		pipe.Del(ctx, key)
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		written, err := replication(ctx, c)
		if err != nil {
			return err
		}
		offset, err := strconv.ParseInt(written["master_repl_offset"], 10, 64)
		if err != nil {
			return err
		}
		// It counts any replicas; but it also has all of them asked how far they are.
		if err := c.Do(ctx, "WAIT", len(replicas), 100).Err(); err != nil {
			return err
		}
		now, err := replication(ctx, c)
		if err != nil {
			return err
		}
		for _, replica := range replicas {
			if acked := acknowledged(now, replica); acked < offset {
				return fmt.Errorf("replica %s has acknowledged %d of %d bytes", replica.Addr(), acked, offset)
			}
		}
		return nil
	})
}

// servedKey is a key that the server serves: in a cluster it may take some tries.
func servedKey(ctx context.Context, c *redis.Client) (string, error) {
	for i := 0; ; i++ {
		key := "testenv:" + strconv.Itoa(i)
		err := c.Exists(ctx, key).Err()
		if _, moved := redis.IsMovedError(err); !moved {
			return key, err
		}
	}
}

func replication(ctx context.Context, c *redis.Client) (map[string]string, error) {
	text, err := c.Info(ctx, "replication").Result()
	return fields(text), err
}

// acknowledged is the offset that the master has last heard of from the replica, or
// -1 if it does not send it writes.
func acknowledged(master map[string]string, replica *Redis) int64 {
	_, port, _ := net.SplitHostPort(replica.Addr())
	for name, value := range master {
		if !strings.HasPrefix(name, "slave") || !strings.Contains(value, ",port="+port+",state=online,") {
			continue
		}
		_, rest, _ := strings.Cut(value, ",offset=")
		number, _, _ := strings.Cut(rest, ",")
		if offset, err := strconv.ParseInt(number, 10, 64); err == nil {
			return offset
		}
	}
	return -1
}
