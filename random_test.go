package locker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

func TestLocker_keepsItsWordWhateverTheLineDoes(t *testing.T) { // G1, G3, G7, W3, House
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed).run() })
		})
	}
}

// unit is about as long as anything takes in a world.
const unit = 300 * time.Millisecond

// world is a store and the Lockers on it, which reach it over bad lines.
type world struct {
	t       *testing.T
	store   *memlock.Store
	bell    *bell
	lockers []locker.Locker
	stop    time.Time
	late    sync.WaitGroup // releases by those who walked away

	mu    sync.Mutex
	rnd   *rand.Rand
	calm  bool
	holds map[string]locker.Lock // the last one of each key
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, store: memlock.NewStore(), bell: newBell(), rnd: rand.New(rand.NewPCG(seed, 0)),
		holds: make(map[string]locker.Lock), stop: time.Now().Add(40 * unit),
	}
	w.lockers = append(w.lockers, newMem(t, w.store, withTTL(unit)))
	for _, b := range []locker.Backend{newFaulty(w.store), newWaking(w.store, w.bell), newQueueing(w.store)} {
		b.(interface{ set(gate, back fault) }).set(w.befall, w.befall)
		w.lockers = append(w.lockers, newOver(t, b, withTTL(unit)))
	}
	return w
}

// pick is a random number below n, up to the world's end a different one each time.
func (w *world) pick(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// some is a random time up to n units.
func (w *world) some(n int) time.Duration { return time.Duration(1 + w.pick(n*int(unit))) }

// befall is what the lines do: most often little.
func (w *world) befall(ctx context.Context, _ string) error {
	w.mu.Lock()
	calm := w.calm
	w.mu.Unlock()
	if calm {
		return nil
	}
	switch w.pick(12) {
	case 0:
		return io.ErrUnexpectedEOF
	case 1:
		return fmt.Errorf("driver: %w", context.DeadlineExceeded)
	case 2: // a driver that ends with its context
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.some(3)):
		}
	case 3: // one that does not, and a line that delivers late
		time.Sleep(w.some(2))
	default:
		time.Sleep(w.some(1) / 50)
	}
	return nil
}

func (w *world) run() {
	var wg sync.WaitGroup
	for _, l := range w.lockers {
		for range 3 {
			wg.Go(func() {
				for time.Now().Before(w.stop) {
					if err := w.use(l); errors.Is(err, locker.ErrClosed) {
						return
					}
				}
			})
		}
	}
	wg.Go(func() { // one of them ends before the others
		time.Sleep(20 * unit)
		ctx, cancel := context.WithTimeout(w.t.Context(), unit)
		defer cancel()
		_ = w.lockers[w.pick(len(w.lockers))].Close(ctx)
	})
	wg.Wait()
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	w.late.Wait()

	for _, l := range w.lockers {
		for _, key := range []string{"a", "b"} {
			ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
			k, err := l.Acquire(ctx, key)
			if errors.Is(err, locker.ErrClosed) {
				err = nil
			} else if err == nil {
				err = k.Release(ctx)
			}
			cancel()
			require.NoError(w.t, err, "%s cannot be taken; the store has %v", key, w.store.Keys())
		}
	}
	for _, l := range w.lockers {
		_ = l.Close(w.t.Context())
	}
	time.Sleep(10 * time.Second) // undos end
	require.Zero(w.t, w.store.Len())
	require.Zero(w.t, w.bell.watched())
}

// use takes a key, does something with the lock and ends it, one way or another.
func (w *world) use(l locker.Locker) error {
	key := string("ab"[w.pick(2)])
	opts := []locker.Option{locker.WithTTL(unit/4 + w.some(2))}
	switch w.pick(4) {
	case 0:
		opts = append(opts, locker.WithoutRenewal())
	case 1:
		opts = append(opts, locker.WithMaxHold(w.some(3)))
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), w.some(8))
	defer cancel()
	acquire := l.Acquire
	if w.pick(4) == 0 {
		acquire = l.TryAcquire
	}
	k, err := acquire(ctx, key, opts...)
	if err != nil {
		if k != nil || ctx.Err() == nil && errors.Is(err, context.Canceled) {
			w.t.Errorf("%v, %v", k, err)
		}
		time.Sleep(w.some(1))
		return err
	}
	w.granted(k)
	for range w.pick(4) {
		if w.pick(2) == 0 {
			ectx, ecancel := context.WithTimeout(w.t.Context(), w.some(1))
			_ = k.Extend(ectx, unit/4+w.some(4))
			ecancel()
		}
		select {
		case <-time.After(w.some(1)):
		case <-k.Done():
		}
		w.look(k)
	}
	if w.pick(5) == 0 { // the holder walks away
		after := w.some(3)
		w.late.Go(func() {
			time.Sleep(after)
			_ = k.Release(context.Background())
		})
		return nil
	}
	lost := errors.Is(k.Err(), locker.ErrLost)
	err = k.Release(ctx)
	if lost != errors.Is(k.Err(), locker.ErrLost) || lost && !errors.Is(err, locker.ErrLost) {
		w.t.Errorf("lost: %v, release: %v, then: %v", lost, err, k.Err())
	}
	if !isDone(k) {
		w.t.Error("not done after its release")
	}
	return nil
}

// granted checks a grant against the one before it.
func (w *world) granted(k locker.Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.holds[k.Key()]; before != nil {
		if before.Err() == nil && time.Now().Before(before.Deadline()) {
			w.t.Errorf("%s has two holders: %s and %s", k.Key(), before.Owner(), k.Owner())
		}
		if k.Token() <= before.Token() {
			w.t.Errorf("token %d of %s after %d", k.Token(), k.Key(), before.Token())
		}
	}
	w.holds[k.Key()] = k
}

// look checks a lock that its holder thinks to have against the store.
func (w *world) look(k locker.Lock) {
	deadline, in := k.Deadline(), shown(w.t, w.store, k.Key())
	if k.Err() != nil || k.Deadline() != deadline {
		return
	}
	if in.Holder != k.Owner() || time.Now().Add(in.Remaining).Before(deadline) {
		w.t.Errorf("held until %v, but the store shows %+v", time.Until(deadline), in)
	}
}
