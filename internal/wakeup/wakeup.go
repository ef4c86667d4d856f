// Package wakeup keeps account of who waits for a store's announcements, for a backend
// that implements locker.Waker with one connection for all keys. How something is
// subscribed, and what the connection is, is the backend's.
package wakeup

import (
	"context"
	"sync"

	"github.com/go-locker/locker"
)

// Topics are what is watched in a store, or was until a moment ago: channels, or numbers,
// by their names K. While there are any, a service runs: the function given to New, on a
// goroutine of its own.
//
// The service tells the store which topics it wants (Ask), and Topics what comes of it
// (Confirm, Refuse, Ended, Lost) and what is announced (Wake). At each of its beats it
// sweeps up what nobody watches any more (Sweep). These methods are for the service alone,
// and for its goroutines, while its ctx lasts.
//
// All methods are safe for concurrent use. None but Watch and Close blocks.
type Topics[K comparable] struct {
	serve  func(ctx context.Context)
	wanted chan struct{} // of one

	mu     sync.Mutex
	topics map[K]*topic
	end    context.CancelFunc // ends the service; nil: there is none
	served <-chan struct{}    // closed when the latest service has returned
	closed bool
}

type topic struct {
	watches map[*watch]struct{}
	state   state
	unused  bool // nobody watched it at the latest sweep
}

// state is how far a topic has come on the present connection.
type state uint8

const (
	wanted state = iota // the store has yet to be asked
	asked
	confirmed
)

// watch implements locker.Watch.
type watch struct {
	mu      *sync.Mutex // of Topics
	topic   *topic
	wakeUps chan struct{} // of one

	// settled is closed when the topic is confirmed, or err says why it will not be.
	settled chan struct{}
	ready   bool
	err     error
}

// New makes Topics. serve is called when something is watched, one call at a time, and
// has to return when its ctx ends, and not before: it ends when no topic is left, and by
// Close.
func New[K comparable](serve func(ctx context.Context)) *Topics[K] {
	served := make(chan struct{})
	close(served)
	return &Topics[K]{serve: serve, wanted: make(chan struct{}, 1), topics: make(map[K]*topic), served: served}
}

// Watch watches a topic. It blocks until the topic is confirmed, which it may be already,
// until the service says that it will not be, or until ctx ends, and returns the cause of
// that then. After Close the error is locker.ErrClosed, marked as permanent.
func (t *Topics[K]) Watch(ctx context.Context, key K) (locker.Watch, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w, err := t.add(key)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.settled:
	case <-ctx.Done():
		w.Close()
		return nil, context.Cause(ctx)
	}
	if w.err != nil {
		return nil, w.err
	}
	return w, nil
}

func (t *Topics[K]) add(key K) (*watch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	on := t.topics[key]
	if on == nil {
		on = &topic{watches: make(map[*watch]struct{})}
		t.topics[key] = on
	}
	w := &watch{mu: &t.mu, topic: on, wakeUps: make(chan struct{}, 1), settled: make(chan struct{})}
	on.watches[w] = struct{}{}
	on.unused = false
	switch on.state {
	case wanted:
		t.start()
		signal(t.wanted)
	case confirmed:
		w.settle(nil)
	}
	return w, nil
}

var errClosed = locker.Permanent(locker.ErrClosed) // it does not open again

// start sees to it that a service runs. It is called with mu.
func (t *Topics[K]) start() {
	if t.end != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	previous, served := t.served, make(chan struct{})
	t.end, t.served = cancel, served
	go func() {
		defer close(served)
		<-previous
		t.serve(ctx)
	}()
}

// stop ends the service. It is called with mu.
func (t *Topics[K]) stop() {
	if t.end != nil {
		t.end()
		t.end = nil
	}
}

// Close fails who waits for a confirmation, as every Watch from then on, ends the service,
// and waits for it until ctx ends. Watches that were confirmed are not woken any more.
func (t *Topics[K]) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	for _, topic := range t.topics {
		topic.fail(errClosed)
	}
	clear(t.topics)
	t.stop()
	served := t.served
	t.mu.Unlock()
	select {
	case <-served:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wanted carries a value when there may be topics to ask for. Values that come faster than
// they are read are merged, and one may be left from an earlier service.
func (t *Topics[K]) Wanted() <-chan struct{} { return t.wanted }

// Ask returns the watched topics that the store has not been asked for on this connection,
// and takes them for asked from now on.
func (t *Topics[K]) Ask() (keys []K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, topic := range t.topics {
		if topic.state == wanted && len(topic.watches) > 0 {
			topic.state = asked
			keys = append(keys, key)
		}
	}
	return keys
}

// Confirm notes that the store now announces what happens to a topic. A watch that was
// confirmed before is woken: it may have missed something since. A topic that is unknown,
// or confirmed, stays as it is.
func (t *Topics[K]) Confirm(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	topic := t.topics[key]
	if topic == nil || topic.state == confirmed {
		return
	}
	topic.state = confirmed
	for w := range topic.watches {
		if w.ready {
			signal(w.wakeUps)
		} else {
			w.settle(nil)
		}
	}
}

// Refuse notes that the store does not do what it was asked for: who waits for a topic that
// was asked for and is not confirmed gets err. The topic is wanted again if it is watched
// by somebody who was confirmed before.
func (t *Topics[K]) Refuse(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range t.topics {
		if topic.state == asked {
			topic.fail(err)
			topic.state = wanted
		}
	}
}

// Lost notes that the connection is gone, or that there is none. Who waits for a
// confirmation gets err. Who has had one is woken by the next. All topics are wanted again.
func (t *Topics[K]) Lost(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range t.topics {
		topic.fail(err)
		topic.state = wanted
	}
}

// Ended notes that the store has stopped to announce a topic, as it was asked to when nobody
// watched. It is wanted again if somebody does by now and had it confirmed before that.
func (t *Topics[K]) Ended(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if topic := t.topics[key]; topic != nil && topic.state == confirmed {
		topic.state = wanted
		signal(t.wanted)
	}
}

// Wake wakes who watches a topic.
func (t *Topics[K]) Wake(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if topic := t.topics[key]; topic != nil {
		for w := range topic.watches {
			signal(w.wakeUps)
		}
	}
}

// Sweep forgets the topics that nobody has watched since the sweep before: one that is
// watched again soon is still there. Of those that the store has yet to be asked for, it
// forgets at once what nobody watches. If no topic is left, it ends the service's ctx.
//
// It returns the topics that are watched, and the forgotten ones: those that were confirmed
// on this connection, and the others. The store may announce these too: if its answer is
// under way, or if the backend's client subscribes by itself to what it was asked for on an
// earlier connection.
func (t *Topics[K]) Sweep() (watched, dropped, others []K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, topic := range t.topics {
		switch {
		case len(topic.watches) > 0:
			watched = append(watched, key)
		case topic.state != wanted && !topic.unused:
			topic.unused = true
		case topic.state == confirmed:
			dropped = append(dropped, key)
			delete(t.topics, key)
		default:
			others = append(others, key)
			delete(t.topics, key)
		}
	}
	if len(t.topics) == 0 {
		t.stop()
	}
	return watched, dropped, others
}

// fail gives up the watches that wait for a confirmation. It is called with mu.
func (t *topic) fail(err error) {
	for w := range t.watches {
		if !w.ready {
			w.settle(err)
			delete(t.watches, w)
		}
	}
}

// settle ends the wait for a confirmation. It is called with mu.
func (w *watch) settle(err error) {
	w.ready, w.err = err == nil, err
	close(w.settled)
}

// C implements locker.Watch.
func (w *watch) C() <-chan struct{} { return w.wakeUps }

// Close implements locker.Watch.
func (w *watch) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.topic.watches, w)
}

// signal puts a value into a channel of one, unless there is one already.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
