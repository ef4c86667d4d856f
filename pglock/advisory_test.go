package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestAdvisory_first(t *testing.T) {
	pool := connect(t, newDatabase(t))
	l, err := New(t.Context(), pool, &Config{Create: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close(context.Background())) }()
	l2, err := New(t.Context(), pool, &Config{Create: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, l2.Close(context.Background())) }()
	k, err := l.TryAcquire(t.Context(), "a")
	require.NoError(t, err)
	t.Log(k.Token(), k.TTL())
	_, err = l2.TryAcquire(t.Context(), "a")
	require.ErrorIs(t, err, locker.ErrHeld)
	t.Log(err)
	h, err := l2.(locker.Inspector).Inspect(t.Context(), "a")
	require.NoError(t, err)
	t.Log(h)
	time.AfterFunc(300*time.Millisecond, func() { k.Release(context.Background()) })
	start := time.Now()
	k, err = l2.Acquire(t.Context(), "a")
	require.NoError(t, err)
	t.Log(time.Since(start), k.Token())
	require.NoError(t, k.Release(t.Context()))
}
