package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-locker/locker"
)

// command is SQL that a wire prepares when it first uses it, or each time if it has no name.
type command struct {
	name string
	sql  string

	// batched: its one parameter is an array of numbers, and it returns a row for each
	// of them, in their order. Calls of it that wait at the same time are sent together.
	// It reads the numbers FROM fromNumbers.
	batched bool

	// rank orders what is sent together: a key is given back before it is taken again.
	rank int

	// undo, if set, is a batched statement that follows an error of this one, for the same
	// numbers and before its calls are answered: some of them may be locked in spite of it.
	// If that fails too, the connection is ended.
	undo *command
}

// fromNumbers is where a batched statement has its numbers from, and fromNumber what stands
// there for a single one, with which the server is done sooner than with a set.
const (
	fromNumbers = "unnest($1::bigint[]) AS n"
	fromNumber  = "(VALUES ($1::bigint)) AS numbers (n)"
)

// call is one use of a statement. The fields behind done are set when it is closed.
type call struct {
	stmt   *command
	number int64    // of a batched one
	args   [][]byte // of another

	after *call  // is answered when this one, which undoes it, is
	then  func() // is called after done is closed, by the reader: it must not block

	done chan struct{}
	rows [][][]byte // a batched call has its own row only
	err  error      // a *pgconn.PgError if the server refused this statement; else the wire has ended
}

func newCall(stmt *command, number int64) *call {
	return &call{stmt: stmt, number: number, done: make(chan struct{})}
}

func newCallWith(stmt *command, args ...string) *call {
	c := newCall(stmt, 0)
	for _, arg := range args {
		c.args = append(c.args, []byte(arg))
	}
	return c
}

// errNotSent: the call's context, or the connection, ended before it was sent.
var errNotSent = errors.New("pglock: not sent")

// wire is a connection on which any goroutine may use statements at any time. One
// flight of them is under way at a time; what gathers meanwhile is the next one. One
// goroutine reads, always, so that the end of the connection is known when it happens.
//
// pgx has one goroutine at a time on a connection, and closes it when a context ends:
// with it, all locks of its session. Hence the work with its lower layer, pgproto3.
type wire struct {
	conn  net.Conn
	front *pgproto3.Frontend

	// Of the server's process, also behind a pooler.
	pid, started string

	// Since when, at most, the server has had sessions: by our clock, and in microseconds of
	// its own. See young.
	born        time.Time
	serverStart int64

	marked bool // the session's name has our mark from its beginning to its end

	// settled is closed when the wire has ended, and it is known whether the session is over
	// on the server too, or nobody is left to find that out.
	settled chan struct{}

	// The hooks are called by the reader, without mu. They must not block.
	onEnd    func(err error)     // once
	onNotify func(number string) // with each notification

	mu       sync.Mutex
	queue    []*call
	flight   []flown         // sent and not answered
	landing  int             // index of the one that is being answered
	sent     time.Time       // when the flight was
	answered time.Time       // when the last one was complete
	prepared map[string]bool // statements that the server knows, or is being told of
	err      error           // the wire has ended
	owed     bool            // and there were calls without an answer
	isOver   bool            // the session is over on the server: see settled
	closing  bool            // by us
	thens    []func()        // to be called when mu is free
}

// flown is one statement of a flight.
type flown struct {
	stmt  *command
	name  string // under which the server knows it
	calls []*call
	rows  [][][]byte
	err   error

	parsing, parsed bool // it was sent to be prepared, and is
}

// writeBound is how long the sending of a flight may take. There is never more than
// one that the server has not answered, so only one that is gone lets it take any time.
const writeBound = 5 * time.Second

// newWire takes over an idle connection. The hooks have to be set before run.
func newWire(c *pgconn.PgConn, pid, started string) (*wire, error) {
	h, err := c.Hijack()
	if err != nil {
		return nil, err
	}
	return &wire{
		conn: h.Conn, front: h.Frontend, pid: pid, started: started, settled: make(chan struct{}),
		answered: time.Now(), prepared: make(map[string]bool),
	}, nil
}

// start queues calls. If the wire has ended, they are answered at once.
func (w *wire) start(calls ...*call) {
	w.mu.Lock()
	defer w.unlock()
	if w.err != nil {
		for _, c := range calls {
			w.finish(c, errors.Join(errNotSent, w.err))
		}
		return
	}
	w.queue = append(w.queue, calls...)
	w.send()
}

// wait waits for a call's answer until ctx ends, and reports whether it came. One that is
// there counts also after ctx: the end of a session answers all calls, and then ends the
// contexts of those who give back what is lost.
func (c *call) wait(ctx context.Context) (answered bool) {
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// do starts a call and waits for its answer. If the call has not been sent when ctx ends,
// it never will be: the error matches errNotSent too.
func (w *wire) do(ctx context.Context, c *call) error {
	w.start(c)
	switch {
	case c.wait(ctx):
		return c.err
	case w.withdraw(c):
		return errors.Join(errNotSent, ctx.Err())
	}
	return ctx.Err()
}

// withdraw takes a call out of the queue, and reports whether it was there.
func (w *wire) withdraw(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, queued := range w.queue {
		if queued == c {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			return true
		}
	}
	return false
}

// silent is how long the server has owed an answer; 0 if it owes none.
func (w *wire) silent() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.flight) == 0 {
		return 0
	}
	return time.Since(w.sent)
}

// idle is how long nothing has been sent or owed.
func (w *wire) idle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.flight) > 0 || len(w.queue) > 0 {
		return 0
	}
	return time.Since(w.answered)
}

// ended is why the wire has ended, or nil.
func (w *wire) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// settle is called once, when the wire has ended.
func (w *wire) settle(over bool) {
	w.mu.Lock()
	w.isOver = over
	w.mu.Unlock()
	close(w.settled)
}

// over reports whether the session is known to be over on the server.
func (w *wire) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.isOver
}

// mayHold reports whether a session that has ended may have left something on the server. It
// has not if we have ended it, in order, when it held nothing.
func (w *wire) mayHold(held bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.isOver && (held || w.owed || !w.closing)
}

// close ends the connection, without waiting for the server. run returns soon.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return
	}
	w.closing = true
	if w.err == nil && len(w.flight) == 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(writeBound / 5))
		w.front.Send(&pgproto3.Terminate{})
		_ = w.front.Flush()
	}
	_ = w.conn.Close()
}

// send sends what is queued, unless a flight is under way. w.mu is held: the server has
// read all flights before, so writing does not block.
func (w *wire) send() {
	if len(w.flight) > 0 || len(w.queue) == 0 {
		return
	}
	w.board()
	w.sent = time.Now()
	for i := range w.flight {
		f := &w.flight[i]
		f.name = f.stmt.name
		args := f.calls[0].args
		switch {
		case f.single():
			f.name += "1"
			args = [][]byte{strconv.AppendInt(nil, f.calls[0].number, 10)}
		case f.stmt.batched:
			numbers := make([]int64, len(f.calls))
			for i, c := range f.calls {
				numbers[i] = c.number
			}
			args = [][]byte{array(numbers)}
		}
		if !w.prepared[f.name] || f.name == "" {
			w.prepared[f.name], f.parsing = true, true
			sql := f.stmt.sql
			if f.single() {
				sql = strings.Replace(sql, fromNumbers, fromNumber, 1)
			}
			w.front.SendParse(&pgproto3.Parse{Name: f.name, Query: sql})
		}
		w.front.SendBind(&pgproto3.Bind{PreparedStatement: f.name, Parameters: args})
		w.front.SendExecute(&pgproto3.Execute{})
		w.front.SendSync(&pgproto3.Sync{}) // each is a transaction of its own, and fails for itself
	}
	_ = w.conn.SetWriteDeadline(w.sent.Add(writeBound))
	if err := w.front.Flush(); err != nil {
		_ = w.conn.Close() // the reader sees it
	}
}

// single: it is a batched statement for one number.
func (f *flown) single() bool { return f.stmt.batched && len(f.calls) == 1 }

// maxShared is how many calls share a statement at most: what it needs of the server's
// lock table, it needs for all of them at once.
const maxShared = 128

// board makes the queue the flight. Calls of one batched statement share it.
func (w *wire) board() {
	for _, c := range w.queue {
		at := len(w.flight)
		for i := range w.flight {
			if c.stmt.batched && w.flight[i].stmt == c.stmt && len(w.flight[i].calls) < maxShared {
				w.flight[i].calls = append(w.flight[i].calls, c)
				at = -1
				break
			}
			if w.flight[i].stmt.rank > c.stmt.rank {
				at = i
				break
			}
		}
		if at >= 0 {
			w.flight = append(w.flight, flown{})
			copy(w.flight[at+1:], w.flight[at:])
			w.flight[at] = flown{stmt: c.stmt, calls: []*call{c}}
		}
	}
	clear(w.queue)
	w.queue = w.queue[:0]
}

// run reads until the connection ends.
func (w *wire) run() {
	var fatal *pgconn.PgError
	for {
		msg, err := w.front.Receive()
		if err != nil {
			w.end(err, fatal)
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.NotificationResponse:
			if w.onNotify != nil {
				w.onNotify(msg.Payload)
			}
		case *pgproto3.ErrorResponse:
			refusal := pgconn.ErrorResponseToPgError(msg)
			switch cmp.Or(refusal.SeverityUnlocalized, refusal.Severity) { // PgBouncer leaves the first one out
			case "FATAL", "PANIC":
				fatal = refusal
			default:
				w.refused(refusal)
			}
		case *pgproto3.ParseComplete:
			w.parsed()
		case *pgproto3.DataRow:
			w.row(msg.Values)
		case *pgproto3.ReadyForQuery:
			w.complete()
		}
	}
}

// now is the statement that is being answered, if any. w.mu is held.
func (w *wire) now() *flown {
	if w.landing == len(w.flight) {
		return new(flown) // the server says more than it was asked
	}
	return &w.flight[w.landing]
}

func (w *wire) parsed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now().parsed = true
}

func (w *wire) refused(err *pgconn.PgError) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.now()
	f.err = err
	if f.parsing && !f.parsed {
		delete(w.prepared, f.name)
	}
}

func (w *wire) row(values [][]byte) {
	row := make([][]byte, len(values))
	for i, v := range values {
		if v != nil {
			row[i] = append([]byte{}, v...) // the driver uses its memory again
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.now()
	f.rows = append(f.rows, row)
}

// complete ends a statement, and with the last one of a flight the flight: its calls are
// answered, and what has gathered is sent.
func (w *wire) complete() {
	w.mu.Lock()
	defer w.unlock()
	if w.landing == len(w.flight) {
		return
	}
	if w.landing++; w.landing < len(w.flight) {
		return
	}
	landed := w.flight
	w.flight, w.landing, w.answered = nil, 0, time.Now()
	var undone map[int64]error
	for _, f := range landed {
		undone = w.answer(f, undone)
	}
	w.send()
}

// answer answers the calls of a statement. undone are the errors of what was before it in
// the flight and is to be undone, by number: whether that has had its effect is not known, so
// what this one has done to the same number is undone with it. It returns them with its own.
// w.mu is held.
func (w *wire) answer(f flown, undone map[int64]error) map[int64]error {
	if f.err == nil && f.stmt.batched && len(f.rows) != len(f.calls) {
		f.err = fmt.Errorf("pglock: %d rows for %d numbers", len(f.rows), len(f.calls))
	}
	for i, c := range f.calls {
		err := f.err
		if err == nil && f.stmt.undo != nil {
			err = undone[c.number]
		}
		switch {
		case c.after != nil:
			if err != nil { // what it was to undo is still there
				_ = w.conn.Close()
			}
			w.finish(c.after, c.after.err)
			continue
		case err != nil && f.stmt.undo != nil:
			undo := newCall(f.stmt.undo, c.number)
			undo.after, c.err = c, err
			if undone == nil {
				undone = make(map[int64]error)
			}
			undone[c.number] = err
			w.queue = append(w.queue, undo)
			continue
		case f.stmt.batched && err == nil:
			c.rows = f.rows[i : i+1]
		default:
			c.rows = f.rows
		}
		w.finish(c, err)
	}
	return undone
}

// finish answers a call. w.mu is held.
func (w *wire) finish(c *call, err error) {
	c.err = err
	close(c.done)
	if c.then != nil {
		w.thens = append(w.thens, c.then)
	}
}

// unlock unlocks w.mu, and calls what is to follow the calls that were answered.
func (w *wire) unlock() {
	thens := w.thens
	w.thens = nil
	w.mu.Unlock()
	for _, then := range thens {
		then()
	}
}

// end answers all calls: there will be no other answer.
func (w *wire) end(err error, fatal *pgconn.PgError) {
	ended := &endError{err: err}
	w.mu.Lock()
	_ = w.conn.Close()
	switch {
	case fatal != nil:
		ended.err, ended.byServer = fatal, true
	case w.closing:
		ended.err = locker.ErrClosed
	}
	w.err = ended
	w.isOver = ended.byServer
	w.owed = len(w.flight) > 0 || len(w.queue) > 0
	fail := func(c *call, err error) {
		if c.after != nil {
			c = c.after
		}
		w.finish(c, err)
	}
	for _, f := range w.flight {
		for _, c := range f.calls {
			fail(c, ended)
		}
	}
	for _, c := range w.queue {
		fail(c, errors.Join(errNotSent, ended))
	}
	w.flight, w.queue, w.landing = nil, nil, 0
	w.unlock()
	if w.onEnd != nil {
		w.onEnd(ended)
	}
}

// endError is why a wire has ended.
type endError struct {
	err error

	// byServer: the server said so, which has ended the session by then. Else it may go
	// on for a while, and hold what it has got.
	byServer bool
}

func (e *endError) Error() string { return "pglock: the session has ended: " + e.err.Error() }
func (e *endError) Unwrap() error { return e.err }
