package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/wakeup"
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
	topics    *wakeup.Topics[int64]
}

func newListener(c *connector, number func(string) int64, looks bool) *listener {
	l := &listener{connector: c, number: number, looks: looks}
	l.topics = wakeup.New[int64](l.serve)
	return l
}

// Watch implements locker.Waker. It blocks until the server has noted that somebody
// waits, and fails when the connection does.
func (l *listener) Watch(ctx context.Context, key string) (locker.Watch, error) {
	return l.topics.Watch(ctx, l.number(key))
}

func (l *listener) wake(number string) {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil { // else somebody else notifies here
		l.topics.Wake(n)
	}
}

// close ends all watching for good and waits for it until ctx ends.
func (l *listener) close(ctx context.Context) error {
	if err := l.topics.Close(ctx); err != nil {
		return errors.New("pglock: the session that listens has not ended")
	}
	return nil
}

// serve keeps a session up until nothing is watched any more.
func (l *listener) serve(ctx context.Context) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		err := l.serveOne(ctx, &pause)
		if ctx.Err() != nil {
			return
		}
		l.topics.Lost(failed(err))
		// At once the first time: the server may be there again already.
		if pause > 0 {
			t := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		pause = min(max(2*pause, 50*time.Millisecond), maxReconnectPause)
		l.topics.Sweep() // ends ctx if all have given up
	}
}

// serveOne serves one session, until that ends, which is an error, or ctx does. A session
// that works resets the pause before the next one.
func (l *listener) serveOne(ctx context.Context, pause *time.Duration) error {
	w, err := l.connector.open(ctx,
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
		ctx, cancel := context.WithTimeout(ctx, answerBound)
		defer cancel()
		return w.do(ctx, c)
	}
	if err := ask(newCallWith(&cmdListen)); err != nil {
		return err
	}
	for silent := 0; ; silent++ {
		if err := l.mark(ctx, w); err != nil {
			return err
		}
		*pause = 0
		t := time.NewTimer(beat - rand.N(beat/4))
		select {
		case <-l.topics.Wanted():
			t.Stop()
			continue
		case <-ended:
			t.Stop()
			return w.ended()
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		watched, dropped, _ := l.topics.Sweep()
		if ctx.Err() != nil {
			return ctx.Err() // and with the session go its marks
		}
		if _, err := l.all(ctx, w, &cmdUnmark, dropped); err != nil {
			return err
		}
		switch {
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
func (l *listener) all(ctx context.Context, w *wire, cmd *command, numbers []int64) (errs []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
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
func (l *listener) mark(ctx context.Context, w *wire) error {
	numbers := l.topics.Ask()
	errs, err := l.all(ctx, w, &cmdMark, numbers)
	if err != nil {
		return err
	}
	for i, n := range numbers {
		if errs[i] == nil {
			l.topics.Confirm(n)
		} else {
			err = errs[i]
		}
	}
	if err != nil {
		l.topics.Refuse(failed(fmt.Errorf("pglock: the server does not note who waits: %w", err)))
	}
	return nil
}
