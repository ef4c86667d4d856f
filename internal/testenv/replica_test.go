//go:build unix

package testenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startReplica(t *testing.T, of *Redis, cfg *RedisConfig) *Redis {
	t.Helper()
	began := time.Now()
	r, err := StartReplica(t.Context(), of, cfg)
	require.NoError(t, err)
	t.Logf("replica started in %v", time.Since(began))
	t.Cleanup(func() { assert.NoError(t, r.Stop()) })
	return r
}

// replicatedSet sets a key and waits for n replicas to have it.
func replicatedSet(t *testing.T, master *Redis, key string, n int) {
	t.Helper()
	require.NoError(t, master.ask(within(t), func(c *redis.Client) error {
		pipe := c.Pipeline()
		pipe.Set(within(t), key, 1, 0)
		acked := pipe.Do(within(t), "WAIT", n, 5000)
		_, err := pipe.Exec(within(t))
		assert.EqualValues(t, n, acked.Val(), "replicas that have acknowledged")
		return err
	}))
}

func TestReplica_hasTheMastersWritesAndRefusesItsOwn(t *testing.T) {
	t.Parallel()
	master := start(t, nil)
	require.Equal(t, "+OK", do(t, master, "SET before 1"))
	replicas := []*Redis{startReplica(t, master, nil), startReplica(t, master, &RedisConfig{AppendOnly: true})}
	assert.Equal(t, ":1", do(t, master, "DBSIZE"), "a key of the start is left")
	replicatedSet(t, master, "after", 2)
	for _, r := range replicas {
		assert.Equal(t, "$1", do(t, r, "GET before"))
		assert.Equal(t, "$1", do(t, r, "GET after"))
		assert.Contains(t, do(t, r, "SET k 1"), "-READONLY")
	}
}

// A replica gets the master's data as a file. With one left, a server would come back
// with old keys, and tests of lost data would find none lost.
func TestReplica_keepsNothingOnDiskEither(t *testing.T) {
	t.Parallel()
	master := start(t, nil)
	require.Equal(t, "+OK", do(t, master, "SET k 1"))
	replica := startReplica(t, master, nil)
	require.Equal(t, "$1", do(t, replica, "GET k"))
	for _, r := range []*Redis{replica, master} {
		require.NoError(t, r.Kill())
	}
	for _, r := range []*Redis{replica, master} {
		require.NoError(t, r.Restart(within(t)))
		assert.Equal(t, "$-1", do(t, r, "GET k"))
	}
	require.NoError(t, until(within(t), "the replica", func(ctx context.Context) error { return master.replicates(ctx, replica) }))
	assert.Contains(t, do(t, replica, "SET k 1"), "-READONLY")
}

func TestReplica_isNotReadyWithoutItsMaster(t *testing.T) {
	tmp := ownTemp(t)
	master := start(t, nil)
	require.NoError(t, master.Pause())
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
	defer cancel()
	_, err := StartReplica(ctx, master, nil)
	require.ErrorIs(t, err, cause)
	require.NoError(t, master.Stop())
	assertEmpty(t, tmp)
}
