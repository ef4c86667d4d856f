package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/wakeup"
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
	b      *backend
	beat   time.Duration
	topics *wakeup.Topics[string] // by channel
}

func newListener(b *backend) *listener {
	l := &listener{b: b, beat: beat}
	l.topics = wakeup.New[string](l.serve)
	return l
}

// Watch implements locker.Waker. It blocks until the server has confirmed the
// subscription of the key's channel, and fails when the connection does, or after
// six seconds.
func (b *backend) Watch(ctx context.Context, key string) (locker.Watch, error) {
	if _, ok := b.rdb.(*redis.Ring); ok {
		return nil, errRing // a release is published on the key's own shard only
	}
	// The listener gives a silent connection up by itself, but it can be stuck in
	// the making of one, for as long as the client's time-outs allow.
	ctx, cancel := context.WithTimeoutCause(ctx, deadAfter*b.listener.beat, errSilent)
	defer cancel()
	return b.listener.topics.Watch(ctx, b.channel(key))
}

// close ends all watching for good and waits for it until ctx ends.
func (l *listener) close(ctx context.Context) error { return l.topics.Close(ctx) }

// serve keeps a connection up until nothing is watched any more.
func (l *listener) serve(ctx context.Context) {
	for ctx.Err() == nil {
		l.serveOne(ctx)
	}
}

// serveOne serves one connection, until it has gone silent or ctx ends: it subscribes
// and unsubscribes, and watches over the receiver.
func (l *listener) serveOne(ctx context.Context) {
	pubsub := l.b.rdb.Subscribe(ctx) // connects with the first channel
	var heard atomic.Bool            // something came in since the latest beat
	received := make(chan struct{})
	receiving := false
	defer func() {
		_ = pubsub.Close() // ends the receiver too
		if receiving {
			<-received
		}
	}()
	subscribe := func() {
		channels := l.topics.Ask()
		if len(channels) == 0 {
			return
		}
		if err := pubsub.Subscribe(ctx, channels...); err != nil {
			l.topics.Lost(l.b.failed(err))
		}
		if !receiving {
			receiving = true
			go l.receive(ctx, pubsub, &heard, received)
		}
	}
	subscribe()
	ticker := time.NewTicker(l.beat)
	defer ticker.Stop()
	for silent := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-l.topics.Wanted():
			subscribe()
		case <-ticker.C:
			_, dropped, others := l.topics.Sweep()
			if ctx.Err() != nil {
				return
			}
			// All of them: go-redis subscribes to the others too when it connects again.
			if dropped = append(dropped, others...); len(dropped) > 0 {
				_ = pubsub.Unsubscribe(ctx, dropped...) // the receiver sees a failure
			}
			subscribe()
			silent++
			if heard.Swap(false) {
				silent = 0
			}
			switch {
			case silent >= deadAfter:
				l.topics.Lost(l.b.failed(errSilent))
				return
			case silent == pingAfter:
				_ = pubsub.Ping(ctx)
			}
		}
	}
}

// receive hands on what the server sends until ctx ends or the connection is closed. go-redis connects and subscribes again by itself, once for each
// failed Receive.
func (l *listener) receive(ctx context.Context, pubsub *redis.PubSub, heard *atomic.Bool, done chan<- struct{}) {
	defer close(done)
	var pause time.Duration
	for {
		msg, err := pubsub.Receive(ctx)
		if ctx.Err() != nil {
			return
		}
		heard.Store(true)
		switch msg := msg.(type) {
		case *redis.Subscription:
			pause = 0
			switch msg.Kind {
			case "subscribe":
				l.topics.Confirm(msg.Channel)
			case "unsubscribe":
				l.topics.Ended(msg.Channel)
			}
		case *redis.Message:
			pause = 0
			l.topics.Wake(msg.Channel)
		}
		if err == nil {
			continue
		}
		if _, ok := serverError(err); ok {
			l.topics.Refuse(l.b.failed(err)) // it does not say which channel
		} else {
			l.topics.Lost(l.b.failed(err))
		}
		if errors.Is(err, redis.ErrClosed) {
			return // serve has closed this connection, or the caller the client
		}
		// At once the first time, because a new connection may be there already.
		if pause > 0 {
			t := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
		pause = min(max(2*pause, 50*time.Millisecond), maxReconnectPause)
	}
}
