package testenv

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// lines connect the members of a cluster. A member knows the others by names that mean
// nothing but to its own HTTP proxy, through which it therefore sends all that it has to
// say to them. So it is known of every request who sends it to whom.
type lines struct {
	proxy *httputil.ReverseProxy
	of    map[string]*line // by the members' names; complete before the first is used
}

// line is what connects a member to the others, in both directions. A nil *line is that
// of a server without others.
type line struct {
	proxy *http.Server
	addr  string // the proxy's

	mu    sync.Mutex
	end   string          // where the member listens to the others
	whole context.Context // ends when the line is cut
	sever context.CancelFunc
}

// peerURL is where the others find a member. The port means nothing either.
func peerURL(name string) string { return "http://" + name + ":2380" }

func startLines(names []string) (*lines, error) {
	ls := &lines{
		proxy: &httputil.ReverseProxy{
			Rewrite:       func(*httputil.ProxyRequest) {}, // ServeHTTP did it
			FlushInterval: -1,
			Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
			// There is no answer: the connection breaks.
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     log.New(io.Discard, "", 0), //nolint:forbidigo // else it would log
		},
		of: make(map[string]*line),
	}
	for _, name := range names {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			ls.stop()
			return nil, err
		}
		l := &line{addr: listener.Addr().String()}
		l.whole, l.sever = context.WithCancel(context.Background())
		l.proxy = &http.Server{
			Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { ls.carry(l, w, r) }),
			ReadHeaderTimeout: time.Minute,
		}
		ls.of[name] = l
		go func() { _ = l.proxy.Serve(listener) }() // until stop
	}
	return ls, nil
}

// carry sends a request of one member to the other, and the answer back, for as long as
// both lines are whole.
func (ls *lines) carry(from *line, w http.ResponseWriter, r *http.Request) {
	to := ls.of[r.URL.Hostname()]
	if to == nil {
		panic(http.ErrAbortHandler)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	for _, l := range []*line{from, to} {
		whole, end := l.state()
		defer context.AfterFunc(whole, cancel)()
		r.URL.Host = end
	}
	ls.proxy.ServeHTTP(w, r)
}

func (ls *lines) stop() {
	for _, l := range ls.of {
		_ = l.cut() // or it is already
		_ = l.proxy.Close()
	}
}

// env has a program send its HTTP requests over the line.
func (l *line) env() []string {
	return []string{"HTTP_PROXY=http://" + l.addr, "NO_PROXY=", "no_proxy="}
}

func (l *line) state() (whole context.Context, end string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.whole, l.end
}

func (l *line) endAt(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = addr
}

func (l *line) cut() error {
	if l == nil {
		return errors.ErrUnsupported
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.whole.Err() != nil {
		return errors.New("testenv: the member is cut off already")
	}
	l.sever()
	return nil
}

func (l *line) mend() error {
	if l == nil {
		return errors.ErrUnsupported
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.whole.Err() == nil {
		return errors.New("testenv: the member is not cut off")
	}
	l.whole, l.sever = context.WithCancel(context.Background())
	return nil
}
