package faultnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how much of one direction can be on its way before the sender has to
// wait: what the socket buffers of a dead connection take.
const window = 1 << 20

// conn is one connection: the client's end of a pipe, and the way between the
// pipe's other end and the server.
type conn struct {
	net.Conn // the client's end
	n        *Network
	pipe     net.Conn
	server   net.Conn
	out, in  stream

	once   sync.Once
	broken chan struct{} // closed by reset

	// Under n.mu.
	doomed   bool // its next reply is lost, and it breaks
	stranded bool // nothing arrives
}

// stream is what is on its way in one direction.
type stream struct {
	mu    sync.Mutex
	moved chan struct{} // closed, and replaced, when the queue has changed
	queue []piece
	size  int
}

// piece is some bytes, or the end of the stream.
type piece struct {
	data []byte
	end  bool
	sent time.Time
}

// connect builds the way to server, unless there was a reset since the dial began.
func (n *Network) connect(server net.Conn, resets int) (net.Conn, error) {
	client, pipe := net.Pipe()
	c := &conn{Conn: client, n: n, pipe: pipe, server: server, broken: make(chan struct{})}
	n.mu.Lock()
	if n.closed || n.resets != resets {
		err := net.ErrClosed
		if !n.closed {
			err = syscall.ECONNRESET
		}
		n.mu.Unlock()
		_, _, _ = client.Close(), pipe.Close(), server.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	if n.conns == nil {
		n.conns = make(map[*conn]struct{})
	}
	n.conns[c] = struct{}{}
	n.mu.Unlock()

	go c.out.fill(pipe, c.broken)
	go c.in.fill(server, c.broken)
	go c.carry(&c.out, server, true)
	go c.carry(&c.in, pipe, false)
	return c, nil
}

// fill queues what src says, until its end.
func (s *stream) fill(src net.Conn, broken <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && !s.push(piece{data: bytes.Clone(buf[:n]), sent: time.Now()}, broken) {
			return
		}
		if err != nil {
			s.push(piece{end: true, sent: time.Now()}, broken)
			return
		}
	}
}

func (s *stream) push(p piece, broken <-chan struct{}) bool {
	for {
		s.mu.Lock()
		if p.end || s.size < window {
			s.queue = append(s.queue, p)
			s.size += len(p.data)
			s.announce()
			s.mu.Unlock()
			return true
		}
		moved := s.move()
		s.mu.Unlock()
		select {
		case <-moved:
		case <-broken:
			return false
		}
	}
}

// head is the first piece, if there is one, and the channel of the next change.
func (s *stream) head() (p piece, ok bool, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return piece{}, false, s.move()
	}
	return s.queue[0], true, nil
}

func (s *stream) pop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size -= len(s.queue[0].data)
	s.queue = s.queue[1:]
	s.announce()
}

// move and announce are called with mu.
func (s *stream) move() <-chan struct{} {
	if s.moved == nil {
		s.moved = make(chan struct{})
	}
	return s.moved
}

func (s *stream) announce() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// carry delivers the pieces of s to dst, as the fault of the moment allows.
func (c *conn) carry(s *stream, dst net.Conn, requests bool) {
	for {
		p, ok, moved := s.head()
		if !ok {
			select {
			case <-moved:
			case <-c.broken:
				return
			}
			continue
		}
		if !c.await(p, requests) {
			return
		}
		s.pop()
		if p.end {
			_ = dst.Close()
			if !requests {
				c.forget()
			}
			return
		}
		deliver, ok := c.admit(p.data, requests)
		if len(deliver) > 0 {
			// A client that has closed its end loses the replies. What it has sent
			// before goes on its way all the same.
			if _, err := dst.Write(deliver); err != nil && requests {
				ok = false
			}
		}
		if !ok {
			c.reset()
			return
		}
	}
}

// await blocks while the network holds the piece back. It reports false if the
// connection has been reset.
func (c *conn) await(p piece, requests bool) bool {
	struck := false
	for !c.isBroken() {
		c.n.mu.Lock()
		f := c.n.fault
		hold, delay := f.HoldReplies, f.DelayReplies
		if requests {
			hold, delay = f.HoldRequests, f.DelayRequests
		}
		hold = hold || c.stranded
		left := time.Until(p.sent.Add(delay))
		if !hold && left <= 0 {
			c.n.mu.Unlock()
			return true
		}
		if !struck {
			struck = true
			c.n.hits++
		}
		changed := c.n.change()
		c.n.mu.Unlock()

		due := time.NewTimer(left)
		if hold {
			due.Stop()
		}
		select {
		case <-changed:
		case <-due.C:
		case <-c.broken:
		}
		due.Stop()
	}
	return false
}

// admit says what of data is let through, and whether the connection goes on.
func (c *conn) admit(data []byte, requests bool) (deliver []byte, ok bool) {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if !requests && c.doomed {
		n.hits++
		return nil, false
	}
	if n.armed {
		if n.cut < int64(len(data)) {
			data, n.armed = data[:n.cut], false
			n.hits++
			return data, false
		}
		n.cut -= int64(len(data))
	}
	if requests && n.drop > 0 && (n.match == nil || n.match(data)) {
		n.drop--
		c.doomed = true
	}
	return data, true
}

// forget takes the connection from the network's list.
func (c *conn) forget() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	delete(c.n.conns, c)
}

// reset breaks the connection, at both ends.
func (c *conn) reset() {
	c.once.Do(func() {
		close(c.broken)
		if tcp, ok := c.server.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the server's end is told by RST, and loses what it has not read
		}
		_ = c.server.Close()
		_ = c.pipe.Close()
		c.forget()
	})
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.worded("read", err)
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.worded("write", err)
}

// worded is the error that a socket would give.
func (c *conn) worded(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case c.isBroken():
		err = syscall.ECONNRESET
	case errors.Is(err, io.EOF):
		return err
	case op == "write" && errors.Is(err, io.ErrClosedPipe):
		err = syscall.EPIPE
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

func (c *conn) isBroken() bool {
	select {
	case <-c.broken:
		return true
	default:
		return false
	}
}

// A pipe refuses a deadline when either end is closed, a socket does not: what has
// become of the connection is told by the next Read or Write.

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return asOfSocket(c.Conn.SetDeadline(t)) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return asOfSocket(c.Conn.SetReadDeadline(t)) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return asOfSocket(c.Conn.SetWriteDeadline(t)) }

func asOfSocket(err error) error {
	if errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.server.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.server.RemoteAddr() }
