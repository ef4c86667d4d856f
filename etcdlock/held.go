package etcdlock

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
)

// Held is the condition that a lock is held in the store, for a transaction of the caller's
// own on the same cluster: it fails once the lock is over, whoever believes in it. It cannot
// tell the holders apart that a Locker hands one lock on to. For a lock that is not of this
// package, it always fails.
func Held(k locker.Lock) clientv3.Cmp {
	g, ok := locker.GrantOf(k).(*grant)
	if !ok {
		return clientv3.Compare(clientv3.CreateRevision("\x00"), "<", 0)
	}
	return clientv3.Compare(clientv3.CreateRevision(g.name), "=", g.created())
}
