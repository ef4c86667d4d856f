package main

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker/internal/testenv"
)

func TestMemory_keepsMarks(t *testing.T) { testMarks(t, newMemory()) }

func TestInRedis_keepsMarks(t *testing.T) {
	p := plan{URL: startRedis(t) + "?prefix=app:&ttl=10s", Run: uuid.NewString()}
	db, err := openMarks(t.Context(), p)
	require.NoError(t, err)
	defer db.Close()
	testMarks(t, db)
	require.Equal(t, int64(1), db.Exists(t.Context(), "app:daily-report:"+p.Run+":finished").Val(), "the prefix is kept to")
}

func startRedis(t *testing.T) (url string) {
	t.Helper()
	srv, err := testenv.AnyRedis(t.Context())
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	return srv.URL()
}

func testMarks(t *testing.T, db marks) {
	t.Helper()
	ctx := t.Context()

	before, err := begin(ctx, db, "finished", 7)
	require.NoError(t, err)
	require.Zero(t, before)
	require.NoError(t, finish(ctx, db, "finished", 7, "instance-1"))
	before, err = begin(ctx, db, "finished", 8)
	require.NoError(t, err)
	require.Equal(t, mark{7, "instance-1"}, before)

	_, err = begin(ctx, db, "taken over", 7)
	require.NoError(t, err)
	before, err = begin(ctx, db, "taken over", 8)
	require.NoError(t, err)
	require.Equal(t, mark{Token: 7}, before)
	requireStale(t, finish(ctx, db, "taken over", 7, "instance-1")) // though 8 has not finished
	_, err = begin(ctx, db, "taken over", 7)
	requireStale(t, err)
	require.NoError(t, finish(ctx, db, "taken over", 8, "instance-2"))
	requireStale(t, finish(ctx, db, "taken over", 7, "instance-1"))

	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := db.update(ctx, "counted", func(m *mark) error { m.Token++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	before, err = begin(ctx, db, "counted", 10)
	require.NoError(t, err)
	require.Equal(t, uint64(10), before.Token, "an update is one transaction")
}

func requireStale(t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[*staleError](err)
	require.True(t, ok, "%v", err)
}
