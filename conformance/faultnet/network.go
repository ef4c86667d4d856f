package faultnet

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// Fault is what the network does to every connection made by its Dial, those of
// before included. The zero Fault is a good network.
type Fault struct {
	Refuse bool // a new connection is refused at once
	Hang   bool // a new connection comes about when the fault is over, or not before its ctx ends

	HoldRequests bool // what the client sends is accepted, and does not arrive
	HoldReplies  bool // what the server sends does not arrive

	DelayRequests time.Duration // what the client sends arrives so much later
	DelayReplies  time.Duration // what the server sends arrives so much later
}

// The faults that have names.
var (
	None      = Fault{}
	BlackHole = Fault{Hang: true, HoldRequests: true, HoldReplies: true} // a cut cable
	Mute      = Fault{Hang: true, HoldReplies: true}                     // one way: requests are served, and nobody hears of it
	Deaf      = Fault{Hang: true, HoldRequests: true}                    // the other way
	Refused   = Fault{Refuse: true}                                      // for those who have no connection yet
)

// Network is one client's way to its servers. The zero Network is a good one. It
// is safe for concurrent use, and must not be copied.
type Network struct {
	// Under makes the connections below the faults. Nil: net.Dialer. It is set
	// before the first Dial.
	Under func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, at every change of what follows
	fault   Fault
	conns   map[*conn]struct{}
	closed  bool
	resets  int // so far

	drop  int                 // replies to lose, see DropReplies
	match func(p []byte) bool // of these requests
	cut   int64               // bytes until the cut, see CutAfter
	armed bool                // a cut is due

	dials, hits int
}

// Dial makes a connection. It has the form that clients want of a dialer, and
// blocks until the connection stands or ctx ends. Its errors are *net.OpError, as those
// of net.Dialer: about syscall.ECONNREFUSED under a fault that refuses, ECONNRESET if a
// Reset came in between, net.ErrClosed after Close, or ctx.Err(); what Under returned
// is passed on as it is.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials++
	n.mu.Unlock()
	resets, err := n.admit(ctx, network)
	if err != nil {
		return nil, err
	}
	under := n.Under
	if under == nil {
		under = new(net.Dialer).DialContext
	}
	server, err := under(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return n.connect(server, resets)
}

// admit waits until the network lets a new connection through. It returns the number
// of resets until then.
func (n *Network) admit(ctx context.Context, network string) (resets int, err error) {
	for {
		n.mu.Lock()
		fault, closed, changed := n.fault, n.closed, n.change()
		resets = n.resets
		if fault.Refuse || fault.Hang {
			n.hits++
		}
		n.mu.Unlock()
		switch {
		case closed:
			return 0, &net.OpError{Op: "dial", Net: network, Err: net.ErrClosed}
		case fault.Refuse:
			return 0, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		case !fault.Hang:
			return resets, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
		}
	}
}

// Set puts f into force, for connections of before and from now on.
func (n *Network) Set(f Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
	n.announce()
}

// Strand makes the connections of now carry nothing any more, for good, and tells
// nobody: a router on the way has forgotten them. New ones are good.
func (n *Network) Strand() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.stranded = true
	}
	n.announce()
}

// Reset breaks all connections of now, as a host does that has forgotten them; those
// that are just being made, too. What was on its way, in either direction, is lost.
func (n *Network) Reset() {
	n.mu.Lock()
	n.resets++
	var conns []*conn
	for c := range n.conns {
		conns = append(conns, c)
	}
	n.hits += len(conns)
	n.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// DropReplies lets the next count requests through that match, each to be served, and
// resets their connections instead of letting the answer pass. A nil match takes
// any piece of what the client sends for a request. It replaces what was asked for
// before: with a count of 0, nothing is dropped any more. match must not call the
// Network.
func (n *Network) DropReplies(count int, match func(p []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop, n.match = count, match
}

// CutAfter resets one connection in the middle of what it carries: the one whose
// traffic, in both directions and over all connections, reaches count bytes from
// now. The bytes before that arrive. It replaces a cut that has not come yet.
func (n *Network) CutAfter(count int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut, n.armed = count, true
}

// Dials is how often a client has asked for a connection so far.
func (n *Network) Dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// Hits is how often a fault has struck so far: a connection refused, kept hanging
// or reset, a piece of traffic held back or delayed, a reply lost. It tells whether a
// fault met anything.
func (n *Network) Hits() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hits
}

// Close resets all connections and ends all dialling, for good. It does not block.
func (n *Network) Close() {
	n.mu.Lock()
	n.closed = true
	n.announce()
	n.mu.Unlock()
	n.Reset()
}

// change is closed at the next change. It is called with mu.
func (n *Network) change() <-chan struct{} {
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

// announce wakes who waits for a change. It is called with mu.
func (n *Network) announce() {
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}
