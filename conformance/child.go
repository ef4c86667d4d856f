package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// The process cases and histories need other processes that use the same store, and
// die. The suite starts its own executable again (process.go). That one builds the
// same Harness, opens one Locker and does what it is told, one JSON object per line:
// requests on standard input, answers on standard output behind a mark, because go
// test prints there too. It ends when standard input does, and so not later than the
// process that started it, unless that one dies while it has stopped the child.

const (
	// childEnv tells a process that it is a child, and which call of Run is
	// meant to notice.
	childEnv   = "LOCKER_CONFORMANCE_CHILD"
	programRun = "program"

	mark = "locker-conformance:"
)

// Child makes a program that calls Check or History able to start itself again: it
// has to call Child first, with the same Harness. If ran is true, this process was
// such a child, has done its work, and should exit. Child then blocks until its
// standard input ends, as it does with the process that started it; ctx is for the
// calls to the Locker. What went wrong is on standard error. In all other processes it
// returns at once.
func Child(ctx context.Context, h Harness) (ran bool) {
	_, mine := childOf(programRun)
	if mine {
		serveChild(ctx, &h)
	}
	return mine
}

// childOf reports whether this process is a child, and whether it belongs to
// the given run.
func childOf(run string) (serving, mine bool) {
	env, ok := os.LookupEnv(childEnv)
	return ok, ok && env == run
}

// request is a line to a child, answer one from it.
type request struct {
	ID   int
	Op   string        // "acquire", "release", "watch", "disturb", "play", "rule"
	Lock int           // the id of the acquire: names the lock
	Key  string        `json:",omitempty"`
	TTL  time.Duration `json:",omitempty"`

	Disturbance *disturbance `json:",omitempty"`
	Role        *role        `json:",omitempty"`
	Ruling      *ruling      `json:",omitempty"`
}

type answer struct {
	ID    int
	Err   string        `json:",omitempty"`
	Token uint64        `json:",omitempty"`
	TTL   time.Duration `json:",omitempty"`

	// Of "watch" and "release".
	Lost bool   `json:",omitempty"` // the error matches ErrLost
	Text string `json:",omitempty"` // the error

	// Of "watch", by machineClock: when Err was last asked before it was nil, and when it
	// was first asked before it was not; and the Deadline at the end.
	AliveAt, LostAt, Deadline time.Duration `json:",omitempty"`

	Note *note `json:",omitempty"` // of "play", before its answer
}

// watch asks a lock for its Err until it is over.
func watch(k locker.Lock, a *answer) {
	now := clock(machineClock)
	for {
		at := now()
		err := k.Err()
		if err != nil {
			a.LostAt, a.Deadline = at, now.of(k.Deadline())
			a.Lost, a.Text = errors.Is(err, locker.ErrLost), err.Error()
			return
		}
		a.AliveAt = at
		time.Sleep(time.Millisecond)
	}
}

// openBound is for how long a process tries to open its Locker: what the store is behind may
// be on its way back.
const openBound = 2 * time.Second

// serveChild obeys standard input until its end.
func serveChild(ctx context.Context, h *Harness) {
	net := new(faultnet.Network)
	open := h.Open
	if h.OpenVia != nil {
		open = func(ctx context.Context) (locker.Locker, error) { return h.OpenVia(ctx, net) }
	}
	l, err := open(ctx)
	for late := time.Now().Add(openBound); err != nil && time.Now().Before(late); l, err = open(ctx) {
		time.Sleep(50 * time.Millisecond) // a program would be started again
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "opening a Locker:", err)
		return
	}
	defer net.Close()
	defer closeNow(ctx, l)

	var mu sync.Mutex
	locks := make(map[int]locker.Lock)
	send := func(a answer) {
		line, _ := json.Marshal(a)
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("\n%s%s\n", mark, line)
	}
	s := newStage(machineClock, func(n note) { send(answer{Note: &n}) })
	lock := func(id int) (locker.Lock, error) {
		mu.Lock()
		defer mu.Unlock()
		if k := locks[id]; k != nil {
			return k, nil
		}
		return nil, errors.New("no such lock")
	}
	do := func(r request) (answer, error) {
		a := answer{ID: r.ID}
		switch r.Op {
		case "acquire":
			k, err := l.Acquire(ctx, r.Key, locker.WithTTL(r.TTL))
			if err != nil {
				return a, err
			}
			mu.Lock()
			locks[r.ID] = k
			mu.Unlock()
			a.Token, a.TTL = k.Token(), k.TTL()
			return a, nil
		case "release":
			k, err := lock(r.Lock)
			if err != nil {
				return a, err
			}
			if err := k.Release(ctx); err != nil {
				a.Lost, a.Text = errors.Is(err, locker.ErrLost), err.Error()
			}
			return a, nil
		case "watch":
			k, err := lock(r.Lock)
			if err != nil {
				return a, err
			}
			watch(k, &a)
			return a, nil
		case "disturb":
			r.Disturbance.on(net)
			return a, nil
		case "play":
			s.play(ctx, l, *r.Role)
			return a, nil
		}
		return a, fmt.Errorf("unknown operation %q", r.Op)
	}
	send(answer{}) // ready
	for in := json.NewDecoder(os.Stdin); ; {
		var r request
		if err := in.Decode(&r); err != nil {
			return
		}
		if r.Op == "rule" {
			s.rule(*r.Ruling)
			continue
		}
		go func() {
			a, err := do(r)
			if err != nil {
				a.Err = err.Error()
			}
			send(a)
		}()
	}
}
