package pglock

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key is a stand-in.
func Key(namespace, key string) int64 {
	sum := sha256.Sum256([]byte("locker\x00" + namespace + "\x00" + key))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func waitMark(number int64) (class, object int32) {
	return int32(number>>32) ^ 0x6c6f636b, int32(number)
}

const notifyChannel = "locker"
