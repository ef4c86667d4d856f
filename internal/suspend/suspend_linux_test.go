package suspend

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is taken for sleep shortens a lock for good.
func TestTotal_isNotAThreadThatHadToWait(t *testing.T) { // H2
	var done atomic.Bool
	defer done.Store(true)
	for range 4 * runtime.GOMAXPROCS(0) {
		go func() {
			runtime.LockOSThread() // it ends with its thread
			for !done.Load() {
				continue
			}
		}()
	}
	first := Total()
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		require.InDelta(t, first, Total(), float64(Jitter))
	}
}
