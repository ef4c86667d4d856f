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
	of    map[string]*line // by the members' names
}

// line is what connects a member to the others, in both directions. A nil *line is that
// of a server without others.
type line struct {
	proxy    *http.Server
	listener net.Listener // the proxy's

	mu   sync.Mutex
	end  string // where the member listens to the others
	wire *wire
}

// wire is a line until it is cut.
type wire struct {
	whole   context.Context // ends with the cut
	sever   context.CancelFunc
	carried sync.WaitGroup // requests; none is added after the cut
}

// peerURL is where the others find a member. The port means nothing either.
func peerURL(name string) string { return "http://" + name + ":2380" }

func startLines(names []string) (*lines, error) {
	ls := &lines{
		proxy: &httputil.ReverseProxy{
			Rewrite:       func(*httputil.ProxyRequest) {}, // carry has done it
			FlushInterval: -1,
			Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
			// There is no answer: the connection breaks.
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     log.New(io.Discard, "", 0), //nolint:forbidigo // else it would log
		},
		of: make(map[string]*line),
	}
	for _, name := range names {
		l := &line{}
		l.proxy = &http.Server{Handler: ls.from(l), ReadHeaderTimeout: time.Minute}
		l.join()
		var err error
		if l.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
			ls.stop()
			return nil, err
		}
		ls.of[name] = l
	}
	for _, l := range ls.of {
		go func() { _ = l.proxy.Serve(l.listener) }() // until stop
	}
	return ls, nil
}

func (ls *lines) stop() {
	for _, l := range ls.of {
		_ = l.cut() // or it is already
		_ = l.proxy.Close()
		_ = l.listener.Close()
	}
}

// from carries what a member sends to another, and the answer back, for as long as both
// lines are whole.
func (ls *lines) from(mine *line) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
		conn := http.NewResponseController(w)
		for _, l := range []*line{mine, ls.of[r.URL.Hostname()]} {
			wire, end := l.enter()
			if wire == nil {
				panic(http.ErrAbortHandler)
			}
			defer wire.carried.Done()
			defer context.AfterFunc(wire.whole, func() {
				cancel()
				// A member that is paused neither takes nor sends the rest.
				_ = conn.SetReadDeadline(time.Unix(1, 0))
				_ = conn.SetWriteDeadline(time.Unix(1, 0))
			})()
			r.URL.Host = end // the last one's
		}
		ls.proxy.ServeHTTP(w, r)
	}
}

// env has a program send its HTTP requests over the line.
func (l *line) env() []string {
	return []string{"HTTP_PROXY=http://" + l.listener.Addr().String(), "NO_PROXY=", "no_proxy="}
}

// enter has the line carry a request, until carried is told that it is done. If the line is
// cut, there is no wire.
func (l *line) enter() (w *wire, end string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wire.whole.Err() != nil {
		return nil, ""
	}
	l.wire.carried.Add(1)
	return l.wire, l.end
}

func (l *line) endAt(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = addr
}

// cut returns when nothing is carried any more.
func (l *line) cut() error {
	if l == nil {
		return errors.ErrUnsupported
	}
	l.mu.Lock()
	w := l.wire
	already := w.whole.Err() != nil
	w.sever()
	l.mu.Unlock()
	w.carried.Wait() // without mu: a request may be about to enter the second of its lines
	if already {
		return errors.New("testenv: the member is cut off already")
	}
	return nil
}

func (l *line) mend() error {
	if l == nil {
		return errors.ErrUnsupported
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wire.whole.Err() == nil {
		return errors.New("testenv: the member is not cut off")
	}
	l.join()
	return nil
}

// join is called with mu, once the line is in use.
func (l *line) join() {
	l.wire = &wire{}
	l.wire.whole, l.wire.sever = context.WithCancel(context.Background())
}
