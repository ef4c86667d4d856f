package conformance_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-locker/locker/conformance"
)

// server lets the world's store be reached by connections only, which can be
// broken, and which it serves one request at a time. What a request does stays in
// this process; its number travels.
type server struct {
	busy chan struct{} // has a value while a request is served

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	down     bool
	paused   chan struct{} // closed by resume; nil while the server runs
	requests map[int]func()
	last     int
	started  func() // if set, what a start after a crash does
}

func newServer() *server {
	return &server{
		busy:     make(chan struct{}, 1),
		conns:    make(map[net.Conn]struct{}),
		requests: make(map[int]func()),
	}
}

func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	client, own := net.Pipe()
	s.conns[own] = struct{}{}
	go s.serve(own)
	return client, nil
}

func (s *server) serve(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		_ = conn.Close()
	}()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		n, _ := strconv.Atoi(lines.Text())
		s.mu.Lock()
		paused, run := s.paused, s.requests[n]
		s.mu.Unlock()
		if paused != nil {
			<-paused
		}
		s.busy <- struct{}{}
		s.mu.Lock()
		down := s.down
		s.mu.Unlock()
		if run != nil && !down {
			run()
		}
		<-s.busy
		if _, err := fmt.Fprintln(conn, n); err != nil || down {
			return
		}
	}
}

// elsewhere lets other requests be served for d between two steps of one.
func (s *server) elsewhere(d time.Duration) {
	<-s.busy
	time.Sleep(d)
	s.busy <- struct{}{}
}

// number makes run a request.
func (s *server) number(run func()) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.requests[s.last] = run
	return s.last
}

func (s *server) hooks() *conformance.Server {
	set := func(f func()) func(context.Context) error {
		return func(context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			f()
			return nil
		}
	}
	return &conformance.Server{
		Pause: set(func() { s.paused = make(chan struct{}) }),
		Resume: set(func() {
			close(s.paused)
			s.paused = nil
		}),
		Kill: set(s.crash),
		Restart: set(func() {
			s.down = false
			if s.started != nil {
				s.started()
			}
		}),
	}
}

// crash breaks the connections, and takes no new ones. It is called with mu.
func (s *server) crash() {
	s.down = true
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// stop ends the server for good.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crash()
}

// pool is a client's connections.
type pool struct {
	s    *server
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	idle   []net.Conn
	closed bool
}

// request has the server run f. An error after sent means that it is not known
// whether it did, or will.
func (p *pool) request(ctx context.Context, f func()) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	conn, err := p.take(ctx)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	n := p.s.number(f)
	if _, err = fmt.Fprintln(conn, n); err == nil {
		var reply string
		if reply, err = bufio.NewReader(conn).ReadString('\n'); err == nil && strings.TrimSpace(reply) != strconv.Itoa(n) {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return true, err
	}
	if stop() {
		p.put(conn)
	}
	return true, nil
}

func (p *pool) take(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		conn := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return conn, nil
	}
	p.mu.Unlock()
	return p.dial(ctx, "tcp", "store")
}

func (p *pool) put(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return
	}
	p.idle = append(p.idle, conn)
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, conn := range p.idle {
		_ = conn.Close()
	}
}
