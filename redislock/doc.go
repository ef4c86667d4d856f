// Package redislock keeps locks in Redis, by way of go-redis: one SET NX PX with a
// fencing token, released and renewed only by the holder whose value stands there.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	l, err := redislock.New(rdb, &redislock.Config{Prefix: "app:"})
//	if err != nil {
//		return err
//	}
//	defer l.Close(ctx) // before rdb
//
//	err = locker.Do(ctx, l, "invoice/42", func(ctx context.Context, k locker.Lock) error {
//		return pay(ctx, k.Token()) // ctx ends with the lock
//	})
//
// Or by configuration, with this package imported for its side effect:
//
//	l, err := locker.Open(ctx, "redis://user:password@localhost:6379/0?prefix=app:&ttl=30s")
//	l, err := locker.Open(ctx, "redis-cluster://node1:6379,node2:6379?prefix=app:")
//	l, err := locker.Open(ctx, "redis-sentinel://sentinel1:26379,sentinel2:26379/mymaster?prefix=app:")
//
// # What is guaranteed
//
// On one server that keeps its data: at most one holder of a key; tokens that rise
// with every grant of it, whatever happens between two of them; and a key that goes
// at the end of its lease if its holder does. A call whose answer got lost is undone
// or recognised. Waiters are woken by a message, and by the clock if there is none.
// Nothing here depends on the clocks of the clients.
//
// # What is not
//
// Redis confirms a write before it is on a replica or on disk. Each of these can
// therefore give a key to a second holder while the first one's lease runs:
//
//   - a failover (Sentinel, Cluster, a managed service), since replication is
//     asynchronous;
//   - a restart without persistence, or with fsync "everysec" after a crash of the
//     machine; "appendonly yes" with "appendfsync always" keeps locks over any
//     restart, the default "everysec" over the crash of the process;
//   - eviction: under memory pressure every policy but "noeviction" may remove locks;
//   - FLUSHALL, DEL, an operator.
//
// The old holder finds out at its next renewal, and its lock is then lost. So does
// every holder that is paused past its lease, by the garbage collector or by the
// machine, when it wakes up: until then it may go on writing. Where two holders for
// a moment would do damage, let the resource check Lock.Token and refuse a smaller
// one than the largest it has seen. Tokens are max(last+1, the server's clock in µs):
// after a loss of data they still rise, unless the new server's clock is behind the
// old one's by more than the time between the two grants.
//
// Servers pass the end of a lease on as a time of day, from Redis 7.0 on: a
// replica whose clock is ahead gives a key away early by as much, once it is the master.
//
// A redis.Ring moves keys to other shards when one of them is down, and so gives
// them out twice: use it where a lock only saves work. It has no wake-ups either;
// waiters look at the store up to once a second.
//
// # Replicas
//
// With Config.Replicas, or the parameter replicas, every grant, renewal and extension
// is followed by WAIT, in the same request and on the same connection. A grant that too
// few replicas have acknowledged in time is undone and refused with a *ReplicasError,
// and Acquire tries again; a renewal that they have not leaves Deadline where it is, so
// that the lock is lost before a replica that lags, and becomes the master, would let
// its key go. A master that is cut off from them grants nothing.
//
// Only the number of all replicas (of each master of a cluster) gives that. With fewer,
// one that has acknowledged nothing may be promoted, because its priority is the better
// one or the others are down, and then all is as without WAIT. With all of them, one
// that is down or lags stops all granting, and so does a failover until the number is
// complete again: this is the choice of correctness over availability. Acknowledged is
// received and not on disk: a replica that is restarted empty, and promoted, has lost
// it. What was refused may stand on a replica for as long as its lease. And WAIT is no
// consensus: where two holders would do damage, check the token all the same.
//
// A lock waits for the slowest replica that counts, a connection of the client's
// pipeline pool meanwhile. On a cluster the requests go out by the clients of the single
// nodes: hooks of the ClusterClient do not see them, those of OnNewNode do.
//
// # Failover
//
// A new master is found without a new client. Behind Sentinel the driver hears of it;
// a ClusterClient is made to look again, at most four times a second, by every error
// that a dead master may have caused. Acquire waits through it; a lock that the new
// master knows is renewed there. How soon depends on the client's time-outs if the old
// master hangs. The subscription for wake-ups moves too, six seconds after a connection
// has gone silent; until then waiters go by the clock.
//
// While a slot moves between two nodes of a cluster, what is held in it can be renewed
// and released, but nothing new is granted: TRYAGAIN, which is waited out.
//
// # Clients
//
// Any redis.UniversalClient works with any of its settings, a pool of one connection
// included, and is never closed. The commands of this package are sent once: but for
// List, MaxRetries makes no difference to them, the Locker repeats by its own rules.
// Recommended:
//
//   - ContextTimeoutEnabled: true. Without it a call whose context ended keeps its
//     connection until ReadTimeout, and every call needs a goroutine of its own.
//   - DialerRetries: 1. The default dials five times, 100 ms apart, inside one command.
//   - ReadTimeout and WriteTimeout below a third of the TTL, so that a hung request
//     gives its connection back before the lease is over; with Sentinel or a cluster
//     about a second, so that a master that hangs is left soon.
//   - MaxRetries: -1 with Sentinel. With the driver's three retries and its time-outs, a
//     sentinel that hangs is not left for another one before Acquire's attempt is over.
//
// Open sets the first two on its own client, which Locker.Close closes, and with
// several servers one second for dial_timeout, read_timeout and write_timeout, and no
// max_retries, unless the URL does. It does no I/O: the first acquire connects. Its
// URLs are
//
//	redis://user:password@host:port/database       one server; rediss:// with TLS
//	redis-cluster://user:password@host:port,…      some nodes of a cluster
//	redis-sentinel://user:password@host:port,…/mastername/database
//
// The last one names sentinels; user and password are the servers', and the
// sentinels' own are the parameters sentinel_username and sentinel_password. The
// database can be left out. With several hosts, tls=true encrypts, and every
// certificate has to be for the name that its server is dialled by, unless
// tls_server_name says for which. Further parameters: prefix, ttl, replicas,
// replica_timeout, and those of redis.ParseURL, skip_verify among them. An unknown one
// is locker.ErrInvalid, and is named unless it may be a piece of a password.
//
// Next to the client's connections there is one for wake-ups while somebody waits. It
// does not count against the pool. It is checked every three seconds of silence, and
// replaced if there is no answer in another three.
//
// # Errors
//
// Errors are those of package locker. The driver's error stays reachable: errors.As
// with redis.Error, errors.Is with redis.ErrPoolTimeout. These end a waiting Acquire
// at once, because waiting does not cure them: NOPERM, NOAUTH, WRONGPASS, DENIED,
// WRONGTYPE, an unknown command, a wrong database, a closed client, a certificate that
// cannot be verified, and MOVED where the client is not a ClusterClient. All others are
// waited out, among them LOADING, BUSY, CLUSTERDOWN, TRYAGAIN, READONLY, NOREPLICAS,
// MISCONF, OOM, a *ReplicasError and everything about connections.
//
// # Hooks and warnings
//
// What happens to locks is told to locker.Config.Observer; requests can be watched with
// a redis.Hook on the client. This package logs nothing, but go-redis writes failed
// dials to stderr: redis.SetLogger changes that.
//
// If there is an Observer, an EventWarning tells, once for each server,
//
//   - of a maxmemory-policy other than noeviction, whether there is a maxmemory or not;
//   - of no persistence: appendonly no, and no save points;
//   - of a server that is a replica;
//   - of a master that has more replicas than Config.Replicas, or any without it;
//   - of what the server does not tell, and why.
//
// That takes two requests to each master (INFO, CONFIG GET save) beside the first
// answer, be it a refusal, and again when after an error another server may answer.
// Locker.Close waits for what is being asked, for half a second at most and until its
// ctx ends. Without an Observer nothing is asked.
//
// # Permissions
//
// With the prefix "app:" a user needs no more than this, plus select for a database
// other than 0, and cluster|slots for a ClusterClient:
//
//	ACL SETUSER locker on >secret ~app:* &app:* +eval +evalsha +get +set +del
//	    +time +pttl +pexpire +publish +subscribe +unsubscribe +ping
//
// Also: scan for List, wait for Replicas, info and config|get for what an Observer is
// warned of. Without the channels (&app:*) or their commands locks work, and waiters go
// by the clock. A user without scripts cannot take anything.
//
// # In Redis
//
// For the lock "k" and the prefix P:
//
//	Pk                 string, with expiry: the owner id, then " label" if there is one
//	P NUL "token"      string, without expiry: the last token, one key for all locks;
//	                   on a cluster with a suffix, one for each slot in use
//	P NUL "wake:k"     channel: the key was released
//
// Programs that lock Pk by SET NX PX and release it by compare-and-delete take part:
// redis-cli, and the Redis lock of most libraries. They may overtake our waiters, and
// their releases are found by the clock. Redis 6.2 or later.
package redislock
