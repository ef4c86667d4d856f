package etcdlock

import (
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// DefaultPrefix begins the names of all locks of a Locker whose Config sets none.
const DefaultPrefix = "locker/"

// Name is the name of a key's lock, as etcdctl lock and concurrency.NewMutex take it, for a
// Locker with this prefix ("" is none, not the default). Entries of those who hold it, or
// wait for it, stand below it in etcd, behind a slash. Of two names none is an entry of the
// other: slashes and percent signs of the key are written as %2F and %25. Keys that etcd
// has from elsewhere must not begin with prefix.
func Name(prefix, key string) string { return prefix + escape.Replace(key) }

var (
	escape   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescape = strings.NewReplacer("%25", "%", "%2F", "/")
)

// line is the prefix of the entries of those who hold a key or wait for it.
func (b *backend) line(key string) string { return Name(b.prefix, key) + "/" }

// keyOf is the key whose line an entry stands in, and which entry it is.
func (b *backend) keyOf(entry string) (key, id string, ok bool) {
	name, id, ok := strings.Cut(strings.TrimPrefix(entry, b.prefix), "/")
	return unescape.Replace(name), id, ok && !strings.HasPrefix(name, internal)
}

// internal begins the names that no key has: there a percent sign is followed by a digit.
const internal = "%!"

// sentinel is the entry that stands and falls with a lease.
func (b *backend) sentinel(id clientv3.LeaseID) string {
	return b.prefix + internal + "lease/" + strconv.FormatInt(int64(id), 16)
}
