package locker

import (
	"math/rand/v2"
	"time"
)

const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = time.Second
)

// backoff spaces repeated attempts: doubling, capped, and jittered so that many
// processes do not come back in step. The zero value is ready.
type backoff struct{ last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, minBackoff), maxBackoff)
	return b.last/2 + rand.N(b.last/2)
}

func (b *backoff) reset() { b.last = 0 }
