package etcdlock

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
)

// Held is the condition that a lock is held in the store, for a transaction of the caller's
// own on the same cluster: it fails once the lock is over, whoever believes in it.
//
//	done, err := client.Txn(ctx).If(etcdlock.Held(k)).Then(clientv3.OpPut("balance", "42")).Commit()
//
// If done.Succeeded is false, nothing was written. For a lock that is not of this package the
// condition always fails.
func Held(k locker.Lock) clientv3.Cmp {
	g, ok := locker.GrantOf(k).(*grant)
	if !ok {
		return clientv3.Compare(clientv3.CreateRevision("\x00"), "<", 0)
	}
	return clientv3.Compare(clientv3.CreateRevision(g.name), "=", g.created())
}
