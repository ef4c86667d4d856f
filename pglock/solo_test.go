package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// An attempt goes on with another session if the idle one does not answer. The end of that
// one is not the loss of what the attempt gets.
func TestSolos_anIdleSessionThatHasLostItsServerIsNoLoss(t *testing.T) { // G7, H3
	network := new(faultnet.Network)
	t.Cleanup(network.Close)
	pool := connect(t, newDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = network.Dial })
	l, err := NewRow(t.Context(), pool, &RowConfig{Create: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	require.NoError(t, acquire(t, l, "k").Release(t.Context()))
	network.Strand()
	k, err := l.TryAcquire(t.Context(), "k", locker.WithTTL(time.Minute))
	require.NoError(t, err)
	require.NoError(t, k.Err())
	require.NoError(t, k.Release(t.Context()))
}

func TestBackends_areNilAfterAnError(t *testing.T) {
	pool := connect(t, newDatabase(t))
	for name, open := range map[string]func() (locker.Backend, error){
		"advisory": func() (locker.Backend, error) { return NewBackend(t.Context(), pool, nil) },
		"row":      func() (locker.Backend, error) { return NewRowBackend(t.Context(), pool, nil) },
		"lease":    func() (locker.Backend, error) { return NewLeaseBackend(t.Context(), pool, nil) },
		"lease, listening": func() (locker.Backend, error) {
			unreachable := connect(t, "postgres://127.0.0.1:1/db")
			return NewLeaseBackend(t.Context(), connect(t, newDatabase(t)), &LeaseConfig{Create: true, Listen: unreachable})
		},
	} {
		b, err := open()
		require.Error(t, err, name)
		if b != nil { // not even one without a value
			t.Errorf("%s: %T", name, b)
		}
	}
}
