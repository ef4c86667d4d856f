package pglock

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key is the number of a key's advisory lock: what another program passes to
// pg_advisory_lock(bigint) to exclude the Lockers of that namespace, and to be
// excluded by them. It is the first eight bytes, big-endian, of the SHA-256 of
// "locker", the namespace and the key, with a zero byte between them. It will not
// change.
//
// Two keys whose numbers are equal are one lock. Among a million keys that happens with
// a probability of 1 in 37 million.
func Key(namespace, key string) int64 {
	sum := sha256.Sum256([]byte("locker\x00" + namespace + "\x00" + key))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// A waiter shows that it is there by a shared advisory lock in the space of two
// integers, which no advisory lock of Key's is in. Whoever releases a key tries that lock
// exclusively, and notifies only if it cannot have it: a notification takes a
// transaction id and a lock on the whole database.

// waitMark is the advisory lock that stands for a waiter of the lock number.
func waitMark(number int64) (class, object int32) {
	return int32(number>>32) ^ 0x6c6f636b, int32(number)
}

// notifyChannel is the channel of all notifications. The payload is the number.
const notifyChannel = "locker"
