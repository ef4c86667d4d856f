package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// An operator removes the entry of a waiter: it gets in line anew, and its old entry is forgotten.
func TestPlace_thatWasRemovedGetsInLineAnew(t *testing.T) { // W3, C33
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	first := p.e
	_, err := c.Delete(t.Context(), first.name)
	require.NoError(t, err)
	p.call()
	_, err = p.Claim(t.Context())
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NotSame(t, first, p.e)
	require.Len(t, p.e.l.entries, 2)
	require.Equal(t, 1, p.e.l.places)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, claim(t, p).Release(t.Context()))
	require.Empty(t, entries(t, c))
}

// The refusal shows who holds the key, and for how long.
func TestPlace_saysHowLongItMayTake(t *testing.T) { // G3
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	p.call()
	_, err := p.Claim(t.Context())
	var he *locker.HeldError
	require.ErrorAs(t, err, &he)
	require.Equal(t, held.holder, he.Holder)
	require.Greater(t, he.Remaining, 5*time.Second)
	require.NoError(t, p.Leave(t.Context()))
	require.NoError(t, held.Release(t.Context()))
}

// The watch of the entry ahead ends with the wait, also if a look found its end first.
func TestPlace_stopsWatchingWhenItIsClaimed(t *testing.T) { // House
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	p.mu.Lock()
	watching, cancel := context.WithCancel(t.Context())
	stop := p.waits
	p.waits = func() { stop(); cancel() }
	p.mu.Unlock()
	require.NoError(t, held.Release(t.Context()))
	g := claim(t, p)
	require.Error(t, watching.Err())
	require.NoError(t, g.Release(t.Context()))
}
