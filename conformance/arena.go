package conformance

import (
	"fmt"
	"sync"

	"github.com/go-locker/locker"
)

// claim is what an arena needs of a lock.
type claim interface {
	Token() uint64
	Err() error
}

// arena sees every claim on one key: from the return of an acquire until the
// call of the release, or the loss. Two of them must never overlap.
type arena struct {
	t      *trial
	mu     sync.Mutex
	holder claim
	token  uint64
	grants int
}

// enter is called as soon as an acquire has returned k.
func (a *arena) enter(k claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.t.want(a.holder == nil || a.holder.Err() != nil, "one holder at a time",
		"a grant (token %d) while the holder of token %d is alive", k.Token(), a.token)
	if a.t.can(locker.CapToken) {
		a.t.want(k.Token() > a.token, fmt.Sprintf("a token over %d, the latest one (G3)", a.token), "token %d", k.Token())
	}
	a.holder, a.token = k, max(a.token, k.Token())
	a.grants++
}

// leave is called just before k's release.
func (a *arena) leave(k claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holder == k {
		a.holder = nil
	}
}
