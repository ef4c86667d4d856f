package testenv

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Namespace is a network of its own on this machine, with one cable to the
// machine's. What is on the other side of the cable vanishes when it is cut, without
// a word: no connection is refused or reset. It is safe for concurrent use.
//
// A server has to listen on the machine's end of the cable: PostgresConfig.Listen.
type Namespace struct {
	prefix netip.Prefix // of four addresses: none, the machine's, the namespace's, none
	link   string       // the machine's end

	mu     sync.Mutex
	holder *process // nil after Stop. As long as it lives, so does the namespace
}

// inner is the other end's name. There is no other network in there.
const inner = "eth0"

// StartNamespace makes a network. ctx bounds the start only. Stop has to be called; the
// network also ends with this process and those that were started in it. It takes
// root on Linux, where that has the right: otherwise the error matches ErrNoNamespace.
// If the program ip is not installed, it matches ErrNotInstalled.
func StartNamespace(ctx context.Context) (*Namespace, error) {
	if !mayHaveNamespace() {
		return nil, fmt.Errorf("%w: it takes root on Linux", ErrNoNamespace)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	prefix, err := freePrefix()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	cmd := exec.Command("sleep", "infinity")
	ownNetwork(cmd)
	holder, err := startProcess(cmd, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	n := &Namespace{prefix: prefix, link: "locker" + strings.ToLower(rand.Text()[:8]), holder: holder}
	if err := n.connect(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrNoNamespace, err), n.Stop())
	}
	return n, nil
}

func mayHaveNamespace() bool { return runtime.GOOS == "linux" && os.Geteuid() == 0 }

// connect lays the cable.
func (n *Namespace) connect(ctx context.Context) error {
	err := ip(ctx, "link", "add", n.link, "type", "veth", "peer", "name", inner, "netns", strconv.Itoa(n.holder.pid()))
	if err != nil {
		return err
	}
	return errors.Join(
		ip(ctx, "address", "add", n.Host().String(), "dev", n.link),
		ip(ctx, "link", "set", n.link, "up"),
		n.ip(ctx, "address", "add", netip.PrefixFrom(n.Addr(), n.prefix.Bits()).String(), "dev", inner),
		n.ip(ctx, "link", "set", "lo", "up"),
		n.ip(ctx, "link", "set", inner, "up"),
	)
}

// Host is the address of the machine's end, with its network. From inside, nothing else
// of the machine can be reached.
func (n *Namespace) Host() netip.Prefix {
	return netip.PrefixFrom(n.prefix.Addr().Next(), n.prefix.Bits())
}

// Addr is the address of the namespace's end: who connects from inside comes from
// there.
func (n *Namespace) Addr() netip.Addr { return n.Host().Addr().Next() }

// Inside calls do on a thread that is in the namespace, and returns when it does, with
// its error. The sockets that do opens, and the processes that it starts, are in the
// namespace and stay there; those of goroutines that it starts are not. do must not
// end its goroutine, as the FailNow of a test does.
func (n *Namespace) Inside(do func() error) error {
	n.mu.Lock()
	holder := n.holder
	n.mu.Unlock()
	if holder == nil {
		return ErrNotRunning
	}
	return inNetworkOf(holder.pid(), do)
}

// Dial connects from inside to an address, which may not be a name. It is what
// locker.OpenConfig.Dial wants to have.
func (n *Namespace) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Inside(func() (err error) {
		conn, err = dial(ctx, network, address)
		return err
	})
	return conn, err
}

// Cut lets nothing through any more, in both directions. The machine sees a peer that
// has vanished. Inside, the network is down: connections stay, and new ones are an
// error at once. It blocks until that is so.
func (n *Namespace) Cut(ctx context.Context) error { return n.ip(ctx, "link", "set", inner, "down") }

// Mend ends a Cut. What was sent meanwhile arrives when TCP repeats it.
func (n *Namespace) Mend(ctx context.Context) error { return n.ip(ctx, "link", "set", inner, "up") }

// Stop cuts for ever, and removes all that StartNamespace made. A second Stop does
// nothing.
func (n *Namespace) Stop() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder == nil {
		return nil
	}
	err := errors.Join(ip(context.Background(), "link", "delete", n.link), n.holder.kill())
	n.holder = nil
	return err
}

// ip runs the program inside.
func (n *Namespace) ip(ctx context.Context, args ...string) error {
	return n.Inside(func() error { return ip(ctx, args...) })
}

func ip(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// freePrefix finds four addresses of 10.0.0.0/8 that this machine has no use for. Two
// that look at the same time have four million to choose from.
func freePrefix() (netip.Prefix, error) {
	used, err := usedPrefixes()
	if err != nil {
		return netip.Prefix{}, err
	}
	for range 1000 {
		r := mathrand.Uint32()
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r >> 16), byte(r >> 8), byte(r) &^ 3}), 30)
		if !slices.ContainsFunc(used, p.Overlaps) {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("no address in 10.0.0.0/8 is free")
}

// usedPrefixes are the networks to which the machine has an address or a route, other
// than the default one.
func usedPrefixes() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, err
		}
		used = append(used, p)
	}
	routes, err := os.ReadFile("/proc/thread-self/net/route")
	if err != nil {
		return nil, err
	}
	// Interface, destination, …, of which the eighth is the mask, in the order of bytes
	// of this machine.
	for line := range strings.Lines(string(routes)) {
		fields := strings.Fields(line)
		to, err1 := strconv.ParseUint(fields[1], 16, 32)
		mask, err2 := strconv.ParseUint(fields[7], 16, 32)
		if err1 != nil || err2 != nil || mask == 0 { // the heading, and the default route
			continue
		}
		used = append(used, netip.PrefixFrom(hostOrder(uint32(to)), bits.OnesCount32(uint32(mask))))
	}
	return used, nil
}

func hostOrder(n uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
