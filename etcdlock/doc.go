// Package etcdlock keeps locks in etcd, 3.5.13 or later, on leases.
//
//	client, err := clientv3.New(clientv3.Config{
//		Endpoints:         []string{"localhost:2379"},
//		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
//		Logger:            zap.NewNop(), // else it logs each request that fails
//	})
//	if err != nil {
//		return err
//	}
//	l, err := etcdlock.New(client, nil)
//	if err != nil {
//		return err
//	}
//	defer l.Close(ctx) // before client
//
//	err = locker.Do(ctx, l, "invoice/42", func(ctx context.Context, k locker.Lock) error {
//		return pay(ctx, k.Token()) // ctx ends with the lock
//	})
//
// Or by configuration, with this package imported for its side effect:
//
//	l, err := locker.Open(ctx, "etcd://host1:2379,host2:2379,host3:2379/app/")
//
// The path, without its first slash, is the Prefix; without one it is [DefaultPrefix]. It had
// better end with a slash: /app is also the beginning of /app2. User and password stand before
// the hosts. ttl is Config.TTL. tls=true encrypts; tls_ca, tls_cert and tls_key name files,
// tls_server_name the name in the server's certificate, min_ttl is Config.MinTTL.
//
// # The entries
//
// A lock is an entry of its own, the owner's id behind [Name] and a slash, whose value is the
// owner and the label, and which stands on a lease. Who waits has an entry too: the one that
// was created first is the lock. That is the layout of concurrency.Mutex and of etcdctl lock,
// with which these locks exclude each other, first come, first served, under the same name.
// TryAcquire makes an entry only if there is none.
//
// The token is the revision at which the entry was created, times [TokenStep]. Revisions rise
// as long as the cluster has its data; a new cluster, or one restored from a backup, begins
// with smaller ones.
//
// # What is guaranteed
//
// At most one holder of a key at a time, as far as each looks at its Deadline, which ends some
// time before the lease does; tokens that rise with every grant of a key; and a key that
// becomes free if its holder is gone, paused or cut off for a TTL and what the server needs to
// notice, half a second and more. What a majority of the members has written is not lost. A
// member that is cut off from the majority grants nothing, and renews nothing that outlasts
// what a new leader gives. A call whose answer got lost is undone or recognised.
//
// # What is not
//
// A lease is time, measured by the clock of the leader's process and by that of the holder's.
// Jepsen found in etcd 3.4.3 that locks on leases do not exclude each other by themselves
// (https://jepsen.io/analyses/etcd-3.4.3): a holder that is paused past its lease goes on
// writing when it wakes up, until it looks. Let the resource check Lock.Token and refuse a
// smaller one than the largest it has seen, or put [Held] into the transaction, if it is in the
// same etcd.
//
// Before etcd 3.5.13 a leader that had hung, and did not know of the new one, could renew
// leases that the new one had ended, and end those that it had renewed
// (https://github.com/etcd-io/etcd/pull/17425).
//
// Whatever ends a lease later than its TTL is not counted by anybody: a new leader, and a
// server that was restarted, give every lease its whole TTL again. So a crashed holder's key
// may stay taken for twice the TTL. A waiter whose look at the store fails gets in line anew,
// at its end.
//
// # The lease
//
// All locks of one TTL stand on one lease (Config.Leases spreads them over more), so that a
// lock and its release are one request each, and a renewal of all of them is one, and one more
// for each 128 of them that looks whether they are still there. That is the blast radius: if
// the lease ends, because it was revoked or could not be renewed in time, all of its locks are
// lost together. One entry for each lease is watched, and goes with it: holders hear of that at
// once. Its name is the prefix, %!lease/ and the id of the lease: whoever deletes it ends those
// locks. A lock that is put on a lease lives from the last renewal of the lease; if that was
// more than a third of the TTL ago, the lease is renewed first.
//
// A lock has the TTL of its lease: Extend takes no other, and a Locker has locks of at most
// four different TTLs at a time. etcd counts in whole seconds, and rounds up; the least it
// gives is one and a half times the time after which it holds an election, two seconds as it
// comes (Config.MinTTL): Lock.TTL tells. What does not end with the lease, a lock without
// renewal or with WithMaxHold, is given back by the Locker, again and again until the server
// has answered. A lease of which it is open what was put on it takes no new locks, and is
// revoked when its last one is gone. One without locks is revoked after a minute, or runs out
// before.
//
// A waiter is kept in line by its lease too: one whose process has died costs that TTL.
//
// # When something breaks
//
// A request that has no answer within a second is given up, and the next one has more time, up
// to five seconds; a renewal never has more than a quarter of the TTL. Acquire, renewals and
// releases are repeated, so a leader that dies, or a member that hangs, costs that second and
// the election. Requests need a leader: a member that has lost its own refuses them at once,
// and another one is asked. While no member can be connected to, they fail at once, with the
// reason. A watch that is refused, because its revision was compacted or its member has no
// leader, is made anew after a look at the store. If the store is full (NOSPACE), acquiring
// fails with the server's error, as may an operator's ForceRelease, and what is held can be
// renewed and given back.
//
// What is wrapped around the parts of a client, such as clientv3/namespace, is passed by: its
// connection is used. A client of one's own should set DialKeepAliveTime and
// DialKeepAliveTimeout, as above, so that a connection that has silently died is given up;
// locker.Open sets them, and gives up connections on which a request had no answer. The user of
// the client needs to read and to write the keys that begin with Prefix, and for leases no
// right of its own. The client logs in again for each renewal of a lease, which is a write and
// costs the server a password's hash.
package etcdlock
