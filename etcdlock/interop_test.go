package etcdlock

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
)

func newMutex(t *testing.T, c *clientv3.Client, key string) *concurrency.Mutex {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(5))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return concurrency.NewMutex(s, Name(DefaultPrefix, key))
}

func TestInterop_aMutexAndALockerExcludeEachOther(t *testing.T) { // G1, interop
	t.Parallel()
	srv := startServer(t)
	l := lockerOn(t, connect(t, srv.Addr()), locker.Config{})
	for _, key := range []string{"k", "a/b", "100%"} {
		m := newMutex(t, connect(t, srv.Addr()), key)
		require.NoError(t, m.Lock(t.Context()))
		_, err := l.TryAcquire(t.Context(), key)
		var held *locker.HeldError
		require.ErrorAs(t, err, &held)
		require.NotEmpty(t, held.Holder, "the id of its entry")
		require.Positive(t, held.Remaining)
		require.NoError(t, m.Unlock(t.Context()))

		k, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		require.ErrorIs(t, m.TryLock(t.Context()), concurrency.ErrLocked)
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
}

func TestInterop_etcdctlAndALockerExcludeEachOther(t *testing.T) { // G1, interop
	t.Parallel()
	srv := startServer(t)
	l := lockerOn(t, connect(t, srv.Addr()), locker.Config{})
	etcdctl := func(do ...string) *exec.Cmd {
		program, err := testenv.Etcdctl()
		started(t, err)
		return exec.CommandContext(t.Context(), program, append([]string{"--endpoints=" + srv.Addr(), "lock", "--ttl=5", Name(DefaultPrefix, "k")}, do...)...)
	}
	holder := etcdctl()
	entry, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	require.True(t, bufio.NewScanner(entry).Scan(), "it says where its lock is")
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrHeld)
	waiting := make(chan locker.Lock, 1)
	go func() {
		if k, err := l.Acquire(t.Context(), "k"); err == nil {
			waiting <- k
		}
	}()
	require.NoError(t, holder.Process.Signal(os.Interrupt)) // it unlocks
	_ = holder.Wait()
	select {
	case k := <-waiting:
		next := etcdctl("true")
		require.NoError(t, next.Start())
		looker := connect(t, srv.Addr())
		require.Eventually(t, func() bool { return len(entries(t, looker)) == 2 }, soon, time.Millisecond, "it waits")
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, next.Wait())
	case <-time.After(soon):
		require.Fail(t, "the lock was not passed on")
	}
}

func TestInterop_aMutexAndALockerStandInOneLine(t *testing.T) { // W2, FIFO, interop
	t.Parallel()
	srv := startServer(t)
	looker := connect(t, srv.Addr())
	holder := lockerOn(t, connect(t, srv.Addr()), locker.Config{})
	k, err := holder.Acquire(t.Context(), "k")
	require.NoError(t, err)
	got := make(chan int)
	pass := make(chan struct{})
	const waiters = 6
	ctx, cancel := context.WithTimeout(t.Context(), 4*soon)
	defer cancel()
	for i := range waiters {
		c := connect(t, srv.Addr())
		var take, give func() error
		if i%2 == 0 {
			m := newMutex(t, c, "k")
			take, give = func() error { return m.Lock(ctx) }, func() error { return m.Unlock(ctx) }
		} else {
			l := lockerOn(t, c, locker.Config{})
			var k locker.Lock
			take = func() (err error) {
				k, err = l.Acquire(ctx, "k")
				return err
			}
			give = func() error { return k.Release(ctx) }
		}
		go func() {
			if take() != nil {
				return
			}
			got <- i
			<-pass
			_ = give()
		}()
		require.Eventually(t, func() bool { return len(entries(t, looker)) == i+2 }, soon, time.Millisecond)
	}
	require.NoError(t, k.Release(t.Context()))
	for i := range waiters {
		select {
		case first := <-got:
			require.Equal(t, i, first)
		case <-time.After(soon):
			require.Fail(t, "nobody has it")
		}
		pass <- struct{}{}
	}
	require.Eventually(t, func() bool { return len(entries(t, looker)) == 0 }, soon, time.Millisecond)
}

// A guard in a transaction of the caller's own fails once the lock is over.
func TestHeld_guardsATransaction(t *testing.T) {
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	l := lockerOn(t, c, locker.Config{})
	write := func(k locker.Lock, value string) bool {
		done, err := c.Txn(t.Context()).If(Held(k)).Then(clientv3.OpPut("resource", value)).Commit()
		require.NoError(t, err)
		return done.Succeeded
	}
	old, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, write(old, "old"))
	done, err := l.(locker.Inspector).ForceRelease(t.Context(), "k", old.Owner())
	require.NoError(t, err)
	require.True(t, done)
	require.False(t, write(old, "too late"))
	next, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, write(old, "too late"))
	require.True(t, write(next, "next"))
	require.False(t, write(struct{ locker.Lock }{next}, "whose is it"))
	require.NoError(t, next.Release(t.Context()))
	require.False(t, write(next, "too late"))
}
