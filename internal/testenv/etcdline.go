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
func (ls *lines) from(l *line) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		to := ls.of[r.URL.Hostname()]
		if to == nil {
			panic(http.ErrAbortHandler)
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		mine, _ := l.state()
		theirs, end := to.state()
		defer context.AfterFunc(mine, cancel)()
		defer context.AfterFunc(theirs, cancel)()
		r = r.WithContext(ctx)
		r.URL.Host = end
		ls.proxy.ServeHTTP(w, r)
	}
}

// env has a program send its HTTP requests over the line.
func (l *line) env() []string {
	return []string{"HTTP_PROXY=http://" + l.listener.Addr().String(), "NO_PROXY=", "no_proxy="}
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
	l.join()
	return nil
}

// join is called with mu, once the line is in use.
func (l *line) join() { l.whole, l.sever = context.WithCancel(context.Background()) }
