package redislock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// oddKeys are hard to find a slot-mate for by means of hash tags.
var oddKeys = []string{
	"a", "a/b", "{", "}", "{}", "{}k", "{}a", "{a}", "a{b}c{d}", "{a}{b}", "a}b", "}{", "{{}}", "{{a}}",
	"a:fence", "x{y", "ключ", strings.Repeat("k", 512), "token", "wake:a",
}

var oddPrefixes = []string{"", "app:", "{app}:", "a{", "{}", "}", "{a}{", "a{b", "{}{x}"}

func TestSlot_isTheServers(t *testing.T) {
	t.Parallel()
	srv := startCluster(t)
	rdb := connect(t, srv)
	keySlot := func(keys []string) []int64 {
		pipe := rdb.Pipeline()
		cmds := make([]*redis.IntCmd, len(keys))
		for i, key := range keys {
			cmds[i] = pipe.ClusterKeySlot(t.Context(), key)
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		got := make([]int64, len(keys))
		for i, cmd := range cmds {
			got[i] = cmd.Val()
		}
		return got
	}
	for _, prefix := range oddPrefixes {
		n := names{prefix: prefix}
		n.slotted.Store(true)
		var locks, counters []string
		for _, key := range oddKeys {
			locks = append(locks, n.lock(key))
			counters = append(counters, n.counter(n.lock(key)))
		}
		of := keySlot(locks)
		with := keySlot(counters)
		for i, lock := range locks {
			require.EqualValues(t, of[i], slotOf(lock), "%q", lock)
			require.Equal(t, of[i], with[i], "%q has its counter in %q", lock, counters[i])
		}
	}
}

func TestSlot_everyOneIsReached(t *testing.T) {
	t.Parallel()
	// The checksum is linear: a longer name only changes the order in which the
	// suffixes reach the slots. So one prefix stands for all.
	seen := make(map[string]bool, slots)
	for slot := range uint16(slots) {
		name := inSlot("app:\x00token", slot)
		if slotOf(name) != slot {
			require.Equal(t, slot, slotOf(name), "%q", name)
		}
		seen[name] = true
	}
	require.Len(t, seen, slots)
}

func TestNames_ofDifferentKeysAndPrefixesNeverMeet(t *testing.T) {
	seen := make(map[string]string)
	add := func(name, what string) {
		if first, ok := seen[name]; ok {
			require.Fail(t, "names meet", "%q is the %s and the %s", name, first, what)
		}
		if !strings.Contains(name, "\x00") {
			require.Fail(t, "a lock could have this name", "%q, the %s", name, what)
		}
		seen[name] = what
	}
	// Locks of two prefixes can share a key: that is what a prefix means. The
	// internal names never meet a lock, nor each other.
	for _, prefix := range oddPrefixes {
		n := names{prefix: prefix}
		add(n.counter(""), fmt.Sprintf("counter of %q", prefix))
		for _, key := range oddKeys {
			add(n.channel(key), fmt.Sprintf("channel of %q in %q", key, prefix))
		}
		n.slotted.Store(true)
		for slot := uint16(0); slot < slots; slot += 97 {
			name := inSlot(prefix+"\x00token", slot)
			if name == prefix+"\x00token" {
				continue // the one from above
			}
			if hashedPart(prefix) != prefix {
				break // one slot for all
			}
			add(name, fmt.Sprintf("counter %d of %q", slot, prefix))
		}
	}
}

func BenchmarkSlot_counterOfANewSlot(b *testing.B) {
	i := 0
	for b.Loop() {
		inSlot("app:\x00token", uint16(i*7919)%slots)
		i++
	}
}
