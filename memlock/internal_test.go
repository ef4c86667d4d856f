package memlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestStore_forgetsShortLocksBehindALongOne(t *testing.T) { // C72, C123
	synctest.Test(t, func(t *testing.T) {
		store := NewStore()
		b := NewBackend(store)
		take := func(key string, ttl time.Duration) {
			_, err := b.TryAcquire(t.Context(), locker.Request{Key: key, Owner: "x", TTL: ttl})
			require.NoError(t, err)
		}
		take("long", 24*time.Hour)
		for i := range 1000 {
			take(fmt.Sprint(i), time.Duration(1+i%3)*time.Second)
		}
		time.Sleep(4 * time.Second)
		store.mu.Lock() // Len would sweep
		defer store.mu.Unlock()
		require.Len(t, store.entries, 1)
	})
}
