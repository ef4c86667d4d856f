package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

//go:embed listen_mark.sql
var markSQL string

//go:embed listen_unmark.sql
var unmarkSQL string

//go:embed listen_free.sql
var freeSQL string

var (
	cmdMark   = command{name: "mark", sql: text(markSQL), batched: true, rank: 1, undo: &cmdUnmark}
	cmdUnmark = command{name: "unmark", sql: text(unmarkSQL), batched: true}
	cmdFree   = command{name: "free", sql: text(freeSQL)}
	cmdListen = command{name: "listen", sql: "LISTEN " + notifyChannel}
	cmdPing   = command{name: "ping", sql: "SELECT 1"}
)

const (
	// beat is the listener's clock: how often it looks for keys whose holders have ended
	// without a word. A number that nobody watches any more stays marked for one to two
	// beats, so that the next wait finds it so, and so does the connection.
	beat = time.Second

	// pingAfter is how many beats of silence make the listener ask for a sign of life.
	pingAfter = 3

	// answerBound is how long the server may take for an answer.
	answerBound = 3 * time.Second

	maxReconnectPause = 2 * time.Second
)

// listener brings wake-ups, for all keys over one session of its own: one that listens
// must not hold locks, because the server does not end it while it has notifications
// that nobody reads. The session, and the two goroutines that serve it, exist while
// something is watched.
type listener struct {
	connector *connector
	number    func(key string) int64
	looks     bool // for free advisory locks, at every beat

	ctx    context.Context // ends with the backend
	cancel context.CancelFunc

	mu     sync.Mutex
	topics map[int64]*topic
	change chan struct{}   // there are topics that have no mark
	served <-chan struct{} // closed when the goroutine that serves has ended; nil: there was none
	serves bool
	closed bool
}

// topic is a number that is watched, or was until a moment ago.
type topic struct {
	watches map[*watch]struct{}
	marked  bool // on the present session
	unused  bool // nobody watched it at the latest beat
}

// watch implements locker.Watch.
type watch struct {
	l       *listener
	number  int64
	wakeUps chan struct{}

	// settled is closed when the number is marked, or err says why it will not be.
	settled chan struct{}
	ready   bool
	err     error
}

func newListener(c *connector, number func(string) int64, looks bool) *listener {
	l := &listener{connector: c, number: number, looks: looks, topics: make(map[int64]*topic), change: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Watch implements locker.Waker. It blocks until the server has noted that somebody
// waits, and fails when the connection does.
func (l *listener) Watch(ctx context.Context, key string) (locker.Watch, error) {
	w := &watch{l: l, number: l.number(key), wakeUps: make(chan struct{}, 1), settled: make(chan struct{})}
	if err := l.add(w); err != nil {
		return nil, err
	}
	select {
	case <-w.settled:
	case <-ctx.Done():
		w.Close()
		return nil, ctx.Err()
	}
	if w.err != nil {
		return nil, w.err
	}
	return w, nil
}

func (l *listener) add(w *watch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return locker.Permanent(locker.ErrClosed)
	}
	t := l.topics[w.number]
	if t == nil {
		t = &topic{watches: make(map[*watch]struct{})}
		l.topics[w.number] = t
	}
	t.watches[w] = struct{}{}
	t.unused = false
	if t.marked {
		w.settle(nil)
		return nil
	}
	if !l.serves {
		l.serves = true
		before, served := l.served, make(chan struct{})
		l.served = served
		go func() {
			defer close(served)
			if before != nil {
				<-before // one session at a time
			}
			l.serve()
		}()
	}
	l.changed()
	return nil
}

func (l *listener) changed() {
	select {
	case l.change <- struct{}{}:
	default:
	}
}

// settle ends the wait for the mark. l.mu is held.
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
	if t := w.l.topics[w.number]; t != nil {
		delete(t.watches, w)
	}
}

func (w *watch) wake() {
	select {
	case w.wakeUps <- struct{}{}:
	default: // one is waiting to be read already
	}
}

func (l *listener) wake(number string) {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return // somebody else notifies here
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.topics[n]; t != nil {
		for w := range t.watches {
			w.wake()
		}
	}
}

// serve keeps a session up until nothing is watched any more.
func (l *listener) serve() {
	pause := time.Duration(0)
	for {
		err := l.serveOne(&pause)
		if err == nil {
			return
		}
		l.lost(err)
		// At once the first time: the server may be there again already.
		if pause > 0 {
			t := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-t.C:
			case <-l.ctx.Done():
				t.Stop()
			}
		}
		pause = min(max(2*pause, 50*time.Millisecond), maxReconnectPause)
		if l.idle() {
			return
		}
	}
}

// serveOne serves one session, and returns nil when none is wanted any more.
func (l *listener) serveOne(pause *time.Duration) error {
	w, err := l.connector.open(l.ctx,
		setting{"application_name", marked(l.connector.application(), "[locker listens]")},
		setting{"idle_session_timeout", "60000"},
		// Who gives a key back has the mark for a moment. Who has it for longer is no
		// Locker.
		setting{"lock_timeout", "1000"})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	w.onNotify = l.wake
	w.onEnd = func(error) { close(ended) }
	go w.run()
	defer func() {
		w.close()
		<-ended
	}()
	ask := func(c *call) error {
		ctx, cancel := context.WithTimeout(l.ctx, answerBound)
		defer cancel()
		return w.do(ctx, c)
	}
	if err := ask(newCallWith(&cmdListen)); err != nil {
		return err
	}
	for silent := 0; ; silent++ {
		if err := l.mark(w); err != nil {
			return err
		}
		*pause = 0
		t := time.NewTimer(beat - rand.N(beat/4))
		select {
		case <-l.change:
			t.Stop()
			continue
		case <-ended:
			t.Stop()
			return w.ended()
		case <-l.ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		watched, unused := l.sweep()
		if err := l.unmark(w, unused); err != nil {
			return err
		}
		switch {
		case l.idle():
			return nil
		case l.looks && len(watched) > 0:
			c := newCallWith(&cmdFree, string(array(watched)))
			if err := ask(c); err != nil {
				return err
			}
			for _, row := range c.rows {
				l.wake(string(row[0]))
			}
		case silent%pingAfter == pingAfter-1:
			if err := ask(newCallWith(&cmdPing)); err != nil {
				return err
			}
		}
	}
}

// all answers a command for each of numbers.
func (l *listener) all(w *wire, cmd *command, numbers []int64) (errs []error, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, answerBound)
	defer cancel()
	calls := make([]*call, len(numbers))
	for i, n := range numbers {
		calls[i] = newCall(cmd, n)
	}
	w.start(calls...)
	errs = make([]error, len(numbers))
	for i, c := range calls {
		if !c.wait(ctx) {
			return nil, ctx.Err()
		}
		errs[i] = c.err
	}
	return errs, w.ended()
}

// mark marks what has no mark yet.
func (l *listener) mark(w *wire) error {
	var numbers []int64
	l.mu.Lock()
	for n, t := range l.topics {
		if !t.marked && len(t.watches) > 0 {
			numbers = append(numbers, n)
		}
	}
	l.mu.Unlock()
	if len(numbers) == 0 {
		return nil
	}
	errs, err := l.all(w, &cmdMark, numbers)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, n := range numbers {
		t := l.topics[n]
		if errs[i] != nil {
			t.fail(failed(fmt.Errorf("pglock: the server does not note who waits: %w", errs[i])))
			continue
		}
		t.marked = true
		for watch := range t.watches {
			if watch.ready {
				watch.wake() // what happened since the last session is not known
			} else {
				watch.settle(nil)
			}
		}
	}
	return nil
}

func (l *listener) unmark(w *wire, numbers []int64) error {
	if len(numbers) == 0 {
		return nil
	}
	_, err := l.all(w, &cmdUnmark, numbers)
	return err
}

// sweep forgets the numbers that nobody has watched since the beat before, and returns
// the others too.
func (l *listener) sweep() (watched, unused []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, t := range l.topics {
		switch {
		case len(t.watches) > 0:
			watched = append(watched, n)
		case !t.unused:
			t.unused = true
		default:
			delete(l.topics, n)
			if t.marked {
				unused = append(unused, n)
			}
		}
	}
	return watched, unused
}

// idle reports whether there is nothing to serve, and ends the service then.
func (l *listener) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.topics) > 0 && !l.closed {
		return false
	}
	l.serves = false
	return true
}

// lost notes that there is no session. Who waits for a mark gets the error; who has had
// one is woken with the next.
func (l *listener) lost(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, t := range l.topics {
		t.marked = false
		t.fail(failed(err))
		if len(t.watches) == 0 {
			delete(l.topics, n)
		}
	}
}

// fail gives up the watches of the topic that wait for a mark. l.mu is held.
func (t *topic) fail(err error) {
	for w := range t.watches {
		if !w.ready {
			w.settle(err)
			delete(t.watches, w)
		}
	}
}

// close ends all watching for good and waits for it until ctx ends.
func (l *listener) close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	for _, t := range l.topics {
		t.fail(locker.ErrClosed)
	}
	served := l.served
	l.mu.Unlock()
	l.cancel()
	if served == nil {
		return nil
	}
	select {
	case <-served:
		return nil
	case <-ctx.Done():
		return errors.New("pglock: the session that listens has not ended")
	}
}
