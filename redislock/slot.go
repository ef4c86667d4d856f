package redislock

import "strings"

const slots = 16384

// crcTable is the CRC-16/XMODEM (polynomial 0x1021) of every byte.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()

func crcByte(crc uint16, b byte) uint16 { return crc<<8 ^ crcTable[byte(crc>>8)^b] }

func crcString(s string) (crc uint16) {
	for i := range len(s) {
		crc = crcByte(crc, s[i])
	}
	return crc
}

// hashedPart is what Redis Cluster hashes of a key: what stands between the first
// brace and the first closing one after it, or all of it if that is nothing.
func hashedPart(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

// slotOf is the slot of a key in Redis Cluster.
func slotOf(key string) uint16 { return crcString(hashedPart(key)) % slots }

// suffixAlphabet has enough letters for three of them to reach every slot, and no
// brace.
const suffixAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"

// inSlot completes name to one that falls into slot. A hash tag cannot do that for
// every lock key ("a}b", "{}k"), so a suffix is searched: some 16,000 steps of the
// checksum's last byte. If name has a hash tag already, which is then the lock
// key's too, it is in the slot as it is.
func inSlot(name string, slot uint16) string {
	if slotOf(name) == slot {
		return name
	}
	crc := crcString(name)
	for i := range len(suffixAlphabet) {
		crc := crcByte(crc, suffixAlphabet[i])
		for j := range len(suffixAlphabet) {
			crc := crcByte(crc, suffixAlphabet[j])
			for k := range len(suffixAlphabet) {
				if crcByte(crc, suffixAlphabet[k])%slots == slot {
					return name + string([]byte{suffixAlphabet[i], suffixAlphabet[j], suffixAlphabet[k]})
				}
			}
		}
	}
	panic("redislock: no suffix leads into the slot") // the tests try them all
}
