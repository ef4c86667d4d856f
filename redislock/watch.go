package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
)

const (
	// beat is the listener's clock. A channel that nobody watches any more is
	// kept for one to two beats, so that the next wait for the same key finds it
	// subscribed, and so is the connection when the last channel is gone.
	beat = time.Second

	// pingAfter and deadAfter are how many beats of silence make the listener
	// ask the server for a sign of life, and give the connection up: one whose
	// other end is gone says nothing by itself.
	pingAfter = 3
	deadAfter = 6

	maxReconnectPause = 2 * time.Second
)

var (
	errSilent = errors.New("redislock: the subscription's connection has gone silent")
	errRing   = fmt.Errorf("%w: wake-ups with a redis.Ring", locker.ErrUnsupported)
)

// listener brings wake-ups, for all keys over one connection. The connection, and
// the two goroutines that serve it, exist while something is watched.
type listener struct {
	b    *backend
	beat time.Duration

	mu     sync.Mutex
	topics map[string]*topic // by channel
	live   *session          // nil when nothing is watched
	last   <-chan struct{}   // closed when the latest session has ended
	closed bool
}

// topic is a channel that is watched, or was until a moment ago.
type topic struct {
	watches map[*watch]struct{}
	state   topicState
	unused  bool // nobody watched it at the latest beat
}

// topicState is how far a channel has come on the present connection.
type topicState uint8

const (
	wanted topicState = iota // SUBSCRIBE has yet to be sent
	asked                    // it was sent
	on                       // the server has confirmed it
)

// watch implements locker.Watch.
type watch struct {
	l       *listener
	channel string
	wakeUps chan struct{}

	// settled is closed when the server has confirmed the channel, or err says
	// why there will be no wake-ups.
	settled chan struct{}
	ready   bool
	err     error
}

// session is one life of the connection: from the first watch to the last.
type session struct {
	ctx     context.Context
	cancel  context.CancelFunc
	changed chan struct{} // there are topics that were not asked for
	heard   atomic.Bool   // something came in since the latest beat
}

func newListener(b *backend) *listener {
	ended := make(chan struct{})
	close(ended)
	return &listener{b: b, beat: beat, topics: make(map[string]*topic), last: ended}
}

// Watch implements locker.Waker. It blocks until the server has confirmed the
// subscription of the key's channel, and fails when the connection does, or after
// six seconds.
func (b *backend) Watch(ctx context.Context, key string) (locker.Watch, error) {
	if _, ok := b.rdb.(*redis.Ring); ok {
		return nil, errRing // a release is published on the key's own shard only
	}
	w, err := b.listener.watch(ctx, b.channel(key))
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (l *listener) watch(ctx context.Context, channel string) (*watch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &watch{l: l, channel: channel, wakeUps: make(chan struct{}, 1), settled: make(chan struct{})}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, locker.ErrClosed
	}
	t := l.topics[channel]
	if t == nil {
		t = &topic{watches: make(map[*watch]struct{})}
		l.topics[channel] = t
	}
	t.watches[w] = struct{}{}
	t.unused = false
	switch t.state {
	case wanted:
		l.start().signal()
	case on:
		w.settle(nil)
	}
	l.mu.Unlock()

	// The session gives a silent connection up by itself, but it can be stuck in
	// the making of one, for as long as the client's time-outs allow.
	patience := time.NewTimer(deadAfter * l.beat)
	defer patience.Stop()
	select {
	case <-w.settled:
	case <-ctx.Done():
		w.Close()
		return nil, ctx.Err()
	case <-patience.C:
		w.Close()
		return nil, errSilent
	}
	if w.err != nil {
		return nil, w.err
	}
	return w, nil
}

// settle ends the wait for the server's confirmation. It is called with mu.
func (w *watch) settle(err error) {
	w.ready, w.err = err == nil, err
	close(w.settled)
}

// C implements locker.Watch.
func (w *watch) C() <-chan struct{} { return w.wakeUps }

// Close implements locker.Watch.
func (w *watch) Close() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if t := w.l.topics[w.channel]; t != nil {
		delete(t.watches, w)
	}
}

func (w *watch) wake() {
	select {
	case w.wakeUps <- struct{}{}:
	default: // one is waiting to be read already
	}
}

// start returns the live session, and begins one if there is none. It is called
// with mu.
func (l *listener) start() *session {
	if l.live == nil {
		s := &session{changed: make(chan struct{}, 1)}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		previous, ended := l.last, make(chan struct{})
		l.live, l.last = s, ended
		go func() {
			defer close(ended)
			<-previous // at most one connection at a time
			for l.serve(s) {
			}
		}()
	}
	return l.live
}

func (s *session) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// close ends all watching for good and waits for it until ctx ends.
func (l *listener) close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	for _, t := range l.topics {
		t.fail(locker.ErrClosed)
	}
	clear(l.topics)
	if l.live != nil {
		l.live.cancel()
		l.live = nil
	}
	last := l.last
	l.mu.Unlock()
	select {
	case <-last:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve runs one connection of the session: it subscribes and unsubscribes, and
// watches over the receiver. It reports whether another connection is wanted.
func (l *listener) serve(s *session) (again bool) {
	pubsub := l.b.rdb.Subscribe(s.ctx) // connects with the first channel
	received := make(chan struct{})
	receiving := false
	defer func() {
		_ = pubsub.Close() // ends the receiver too
		if receiving {
			<-received
		}
	}()
	subscribe := func() {
		channels := l.ask()
		if len(channels) == 0 {
			return
		}
		if err := pubsub.Subscribe(s.ctx, channels...); err != nil {
			l.lost(l.b.failed(err))
		}
		if !receiving {
			receiving = true
			go l.receive(s, pubsub, received)
		}
	}
	subscribe()
	ticker := time.NewTicker(l.beat)
	defer ticker.Stop()
	for silent := 0; ; {
		select {
		case <-s.ctx.Done():
			return false
		case <-s.changed:
			subscribe()
		case <-ticker.C:
			dropped, idle := l.sweep(s)
			if idle {
				return false
			}
			if len(dropped) > 0 {
				_ = pubsub.Unsubscribe(s.ctx, dropped...) // the receiver sees a failure
			}
			subscribe()
			silent++
			if s.heard.Swap(false) {
				silent = 0
			}
			switch {
			case silent >= deadAfter:
				l.lost(l.b.failed(errSilent))
				return true
			case silent == pingAfter:
				_ = pubsub.Ping(s.ctx)
			}
		}
	}
}

// receive hands on what the server sends until the session or the connection's
// service ends. go-redis connects and subscribes again by itself, once for each
// failed Receive.
func (l *listener) receive(s *session, pubsub *redis.PubSub, done chan<- struct{}) {
	defer close(done)
	var pause time.Duration
	for {
		msg, err := pubsub.Receive(s.ctx)
		if s.ctx.Err() != nil {
			return
		}
		s.heard.Store(true)
		switch msg := msg.(type) {
		case *redis.Subscription:
			pause = 0
			switch msg.Kind {
			case "subscribe":
				l.confirmed(msg.Channel)
			case "unsubscribe":
				l.ended(s, msg.Channel)
			}
		case *redis.Message:
			pause = 0
			l.wake(msg.Channel)
		}
		if err == nil {
			continue
		}
		if _, ok := serverError(err); ok {
			l.refused(l.b.failed(err))
		} else {
			l.lost(l.b.failed(err))
		}
		if errors.Is(err, redis.ErrClosed) {
			return // serve has closed this connection, or the caller the client
		}
		// At once the first time, because a new connection may be there already.
		if pause > 0 {
			t := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-t.C:
			case <-s.ctx.Done():
				t.Stop()
				return
			}
		}
		pause = min(max(2*pause, 50*time.Millisecond), maxReconnectPause)
	}
}

// ask returns the channels that are to be subscribed.
func (l *listener) ask() (channels []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, t := range l.topics {
		if t.state == wanted && len(t.watches) > 0 {
			t.state = asked
			channels = append(channels, channel)
		}
	}
	return channels
}

// sweep forgets the channels that nobody has watched since the beat before, and
// the session when there are no others.
func (l *listener) sweep(s *session) (dropped []string, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, t := range l.topics {
		switch {
		case len(t.watches) > 0:
		case !t.unused:
			t.unused = true
		default:
			delete(l.topics, channel)
			dropped = append(dropped, channel)
		}
	}
	if len(l.topics) == 0 && l.live == s {
		l.live = nil
		s.cancel()
	}
	return dropped, l.live != s
}

// confirmed notes that the server now sends the channel's messages. A watch that
// was ready before may have missed one: the connection is a new one.
func (l *listener) confirmed(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[channel]
	if t == nil || t.state == on {
		return
	}
	t.state = on
	for w := range t.watches {
		if w.ready {
			w.wake()
		} else {
			w.settle(nil)
		}
	}
}

// ended notes that the server has stopped sending the channel's messages, which
// matters if the channel is watched again by now.
func (l *listener) ended(s *session, channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.topics[channel]; t != nil && t.state == on {
		t.state = wanted
		s.signal()
	}
}

func (l *listener) wake(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.topics[channel]; t != nil {
		for w := range t.watches {
			w.wake()
		}
	}
}

// lost notes that the connection is gone. Who waits for a confirmation gets the
// error; who has had one is woken by the next.
func (l *listener) lost(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.topics {
		if t.state == asked {
			t.fail(err)
		}
		t.state = wanted
	}
}

// refused notes that the server does not let this user subscribe, without saying
// to which of the channels that it was asked for.
func (l *listener) refused(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.topics {
		if t.state == asked {
			t.fail(err)
			t.state = wanted
		}
	}
}

// fail gives up the watches of the topic that wait for a confirmation. It is
// called with mu.
func (t *topic) fail(err error) {
	for w := range t.watches {
		if !w.ready {
			w.settle(err)
			delete(t.watches, w)
		}
	}
}
