package redislock

import (
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// names makes the names that the backend uses in Redis. The internal ones hold a
// NUL behind the prefix, which neither a prefix nor a legal key has, so they meet
// no lock's key, nor those of another prefix.
type names struct {
	prefix string

	// slotted says that the server is a cluster, where the keys of one script
	// have to share a slot: there is a token counter for each slot in use, and
	// not one for all keys.
	slotted  atomic.Bool
	counters sync.Map // name of the counter by slot
}

// lock is the key that stands for a lock: what other clients lock by.
func (n *names) lock(key string) string { return n.prefix + key }

// key is the lock that name in Redis stands for, unless it is nobody's: an internal
// name, of this prefix or of a longer one, or one that no key has.
func (n *names) key(name string) (key string, ok bool) {
	key, ok = strings.CutPrefix(name, n.prefix)
	return key, ok && key != "" && len(key) <= maxKeyBytes && utf8.ValidString(key) && !strings.Contains(key, "\x00")
}

// maxKeyBytes is how long a locker.Locker's keys are at most.
const maxKeyBytes = 512

// escapeGlob makes a pattern that matches text and nothing else.
func escapeGlob(text string) string { return globEscaper.Replace(text) }

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// channel is where the release of key is announced.
func (n *names) channel(key string) string { return n.prefix + "\x00wake:" + key }

// counter is the token counter for the lock whose key in Redis is lock.
func (n *names) counter(lock string) string {
	name := n.prefix + "\x00token"
	if !n.slotted.Load() {
		return name
	}
	slot := slotOf(lock)
	if known, ok := n.counters.Load(slot); ok {
		return known.(string)
	}
	// Where the server does not object to the plain name, it is the plain name.
	name = inSlot(name, slot)
	n.counters.Store(slot, name)
	return name
}
