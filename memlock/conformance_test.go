package memlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/memlock"
)

func TestConformance(t *testing.T) {
	store := memlock.NewStore()
	conformance.Run(t, conformance.Harness{
		Open: func(context.Context) (locker.Locker, error) {
			return memlock.New(store, nil)
		},
		TTL:   200 * time.Millisecond,
		Names: func(context.Context) ([]string, error) { return store.Keys(), nil },
	})
}
