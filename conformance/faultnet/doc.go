// Package faultnet is a network that misbehaves on demand: a dialer to put under
// the client of a store, whatever the store speaks.
//
//	net := new(faultnet.Network)
//	defer net.Close()
//	rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: net.Dial}) // pgx: Config.DialFunc; gRPC: WithContextDialer
//	net.Set(faultnet.BlackHole) // nothing arrives any more, in either direction
//	net.Set(faultnet.None)      // what was on its way arrives now
//
// What a fault holds back is not lost: as with TCP, which sends it again, it
// arrives once the fault is over, even if the client has closed the connection in
// the meantime. That is how a request comes to be served long after its caller
// gave up. Reset loses it.
//
// It is seen from the client. A server's own kernel sees a live peer at all times,
// so what a server does about a vanished host (keepalives) cannot be tried here.
package faultnet
