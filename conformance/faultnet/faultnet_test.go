package faultnet_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker/conformance/faultnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 5 * time.Second

// server answers each line with itself, and remembers what it was sent.
type server struct {
	listener net.Listener
	running  sync.WaitGroup

	mu   sync.Mutex
	seen []string
}

func serve(t *testing.T) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{listener: listener}
	s.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() {
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					s.mu.Lock()
					s.seen = append(s.seen, lines.Text())
					s.mu.Unlock()
					if _, err := io.WriteString(conn, lines.Text()+"\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.running.Wait()
	})
	return s
}

func (s *server) has(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.seen, line)
}

// client is one connection through the network.
type client struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, n *faultnet.Network, s *server) *client {
	t.Helper()
	conn, err := n.Dial(t.Context(), "tcp", s.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &client{conn, bufio.NewReader(conn)}
}

func (c *client) send(line string) error {
	_, err := io.WriteString(c, line+"\n")
	return err
}

func (c *client) receive(limit time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	line, err := c.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func (c *client) requireEcho(t *testing.T, line string) {
	t.Helper()
	require.NoError(t, c.send(line))
	got, err := c.receive(soon)
	require.NoError(t, err)
	require.Equal(t, line, got)
}

// network is closed after the connections of the test.
func network(t *testing.T) *faultnet.Network {
	n := new(faultnet.Network)
	t.Cleanup(n.Close)
	return n
}

const aMoment = 20 * time.Millisecond

func TestNetwork_isGoodByDefault(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	c.requireEcho(t, "a")
	big := strings.Repeat("x", 60_000)
	c.requireEcho(t, big)
	require.Equal(t, 1, n.Dials())
	require.Zero(t, n.Hits())
	require.Equal(t, s.listener.Addr().String(), c.RemoteAddr().String())
	require.NoError(t, c.Close())
	_, err := c.Write([]byte("x"))
	require.Error(t, err)
}

func TestNetwork_holdsAndDeliversLater(t *testing.T) {
	for name, fault := range map[string]faultnet.Fault{
		"black hole": faultnet.BlackHole, "mute": faultnet.Mute, "deaf": faultnet.Deaf,
	} {
		t.Run(name, func(t *testing.T) {
			s, n := serve(t), network(t)
			c := dial(t, n, s)
			c.requireEcho(t, "before")
			n.Set(fault)
			require.NoError(t, c.send("within"))
			_, err := c.receive(aMoment)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout())
			require.Equal(t, !fault.HoldRequests, s.has("within"))
			require.Positive(t, n.Hits())

			ctx, cancel := context.WithTimeoutCause(t.Context(), aMoment, errors.New("a cause that a net.Dialer would not tell"))
			defer cancel()
			_, err = n.Dial(ctx, "tcp", s.listener.Addr().String())
			require.ErrorIs(t, err, context.DeadlineExceeded)

			n.Set(faultnet.None)
			got, err := c.receive(soon)
			require.NoError(t, err)
			require.Equal(t, "within", got)
			c.requireEcho(t, "after")
		})
	}
}

func TestNetwork_aRequestOutlivesItsConnection(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	n.Set(faultnet.BlackHole)
	require.NoError(t, c.send("ghost"))
	require.NoError(t, c.Close())
	n.Set(faultnet.None)
	require.Eventually(t, func() bool { return s.has("ghost") }, soon, time.Millisecond)
}

func TestNetwork_resetLosesWhatWasOnItsWay(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	c.requireEcho(t, "before")
	n.Set(faultnet.Deaf)
	require.NoError(t, c.send("lost"))
	n.Reset()
	n.Set(faultnet.None)
	_, err := c.receive(soon)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorIs(t, c.send("more"), syscall.ECONNRESET)
	// A client that sets a deadline first sees the same.
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(soon)))
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(soon)))
	_, err = c.receive(soon)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	dial(t, n, s).requireEcho(t, "after")
	require.False(t, s.has("lost"))
}

func TestNetwork_strandsOldConnectionsOnly(t *testing.T) {
	s, n := serve(t), network(t)
	old := dial(t, n, s)
	old.requireEcho(t, "before")
	n.Strand()
	require.NoError(t, old.send("stranded"))
	dial(t, n, s).requireEcho(t, "after")
	n.Set(faultnet.None) // does not bring them back
	_, err := old.receive(aMoment)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.False(t, s.has("stranded"))
	require.Positive(t, n.Hits())
}

func TestNetwork_standsOnAnyDialer(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	n := network(t)
	n.Under = func(context.Context, string, string) (net.Conn, error) { return client, nil }
	conn, err := n.Dial(t.Context(), "tcp", "anywhere")
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "x")
	require.NoError(t, err)
	got := make([]byte, 1)
	_, err = io.ReadFull(server, got)
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
}

func TestNetwork_refusesAndHangs(t *testing.T) {
	s, n := serve(t), network(t)
	old := dial(t, n, s)
	n.Set(faultnet.Refused)
	_, err := n.Dial(t.Context(), "tcp", s.listener.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	old.requireEcho(t, "still there")

	n.Set(faultnet.Fault{Hang: true})
	dialled := make(chan error, 1)
	go func() {
		conn, err := n.Dial(t.Context(), "tcp", s.listener.Addr().String())
		if err == nil {
			err = conn.Close()
		}
		dialled <- err
	}()
	require.Eventually(t, func() bool { return n.Hits() == 2 }, soon, time.Millisecond)
	n.Set(faultnet.None)
	require.NoError(t, <-dialled)
}

func TestNetwork_aResetMeetsConnectionsThatAreBeingMade(t *testing.T) {
	n := network(t)
	n.Under = func(context.Context, string, string) (net.Conn, error) {
		n.Set(faultnet.Refused)
		n.Reset()
		client, _ := net.Pipe()
		return client, nil
	}
	_, err := n.Dial(t.Context(), "tcp", "anywhere")
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestNetwork_delays(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	for _, fault := range []faultnet.Fault{
		{DelayReplies: 30 * time.Millisecond}, {DelayRequests: 30 * time.Millisecond},
	} {
		n.Set(fault)
		start := time.Now()
		c.requireEcho(t, "late")
		require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
	}
	n.Set(faultnet.Fault{DelayReplies: time.Hour})
	require.NoError(t, c.send("very late"))
	require.Eventually(t, func() bool { return s.has("very late") }, soon, time.Millisecond)
	n.Set(faultnet.None) // shortens what is under way, too
	got, err := c.receive(soon)
	require.NoError(t, err)
	require.Equal(t, "very late", got)
}

func TestNetwork_dropsTheReplyAndNotTheRequest(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	n.DropReplies(1, func(p []byte) bool { return bytes.Contains(p, []byte("this one")) })
	c.requireEcho(t, "another")
	require.NoError(t, c.send("this one"))
	_, err := c.receive(soon)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.True(t, s.has("this one"))
	require.Equal(t, 1, n.Hits())
	again := dial(t, n, s)
	again.requireEcho(t, "this one")
	n.DropReplies(1, nil)
	require.NoError(t, again.send("any"))
	_, err = again.receive(soon)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.True(t, s.has("any"))
}

func TestNetwork_cutsInTheMiddle(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	c.requireEcho(t, "whole")
	n.CutAfter(7 + 3) // the request and a part of the reply
	require.NoError(t, c.send("seven."))
	got, err := c.receive(soon)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "sev", got)
	require.True(t, s.has("seven."))
	dial(t, n, s).requireEcho(t, "whole again")
}

func TestNetwork_theServersEndOfAConnectionIsTold(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	n := network(t)
	conn, err := n.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	peer, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, peer.Close())
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestNetwork_aFullWindowBlocksTheSender(t *testing.T) {
	s, n := serve(t), network(t)
	c := dial(t, n, s)
	n.Set(faultnet.BlackHole)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
	_, err := c.Write(bytes.Repeat([]byte("x"), 8<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestNetwork_closeEndsEverything(t *testing.T) {
	s := serve(t)
	n := new(faultnet.Network)
	c := dial(t, n, s)
	n.Set(faultnet.BlackHole)
	require.NoError(t, c.send("held"))
	n.Close()
	_, err := c.receive(soon)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = n.Dial(t.Context(), "tcp", s.listener.Addr().String())
	require.ErrorIs(t, err, net.ErrClosed)
}
