package redislock

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// examinePause is the shortest time between two examinations.
	examinePause = 5 * time.Second

	// examinePatience bounds one.
	examinePatience = 5 * time.Second
)

// examiner looks at the servers' settings, and reports those that endanger locks. It
// does so beside the first answer of a server, and the first after an error that may
// mean that another server answers now: on a goroutine of its own, two requests to
// each master.
type examiner struct {
	b      *backend
	pause  time.Duration
	report func(error) // nil: nobody wants to know, and nothing is looked at

	mu     sync.Mutex
	done   bool               // nothing has happened since the last time
	last   time.Time          // when that was
	cancel context.CancelFunc // nil: not running
	ended  chan struct{}      // closed when the latest one has ended
	closed bool
	known  map[string]struct{} // servers that were reported on, by their run ids
}

func newExaminer(b *backend) *examiner {
	ended := make(chan struct{})
	close(ended)
	return &examiner{b: b, pause: examinePause, ended: ended}
}

// OnWarning implements locker.Warner.
func (b *backend) OnWarning(report func(err error)) { b.examiner.report = report }

// AwaitWarnings implements locker.Warner.
func (b *backend) AwaitWarnings(ctx context.Context) { _ = b.examiner.await(ctx) }

// answered notes that a server has answered.
func (e *examiner) answered() {
	if e.report == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done || e.closed || e.cancel != nil || time.Since(e.last) < e.pause {
		return
	}
	e.done, e.last = true, time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), examinePatience)
	ended := make(chan struct{})
	e.cancel, e.ended = cancel, ended
	go func() {
		defer close(ended)
		defer cancel()
		complete := e.examine(ctx)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cancel = nil
		if !complete {
			e.done = false
		}
	}()
}

// unanswered notes that a server has not answered. The next one may be another.
func (e *examiner) unanswered() {
	if e.report == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = false
}

// close ends all examining for good, and waits for that until ctx ends.
func (e *examiner) close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	if e.cancel != nil {
		e.cancel()
	}
	e.mu.Unlock()
	return e.await(ctx)
}

// await waits for the examination under way, if there is one, until ctx ends.
func (e *examiner) await(ctx context.Context) error {
	e.mu.Lock()
	ended := e.ended
	e.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// examine looks at every master, and reports on those that it has not before. It is
// complete if all have answered.
func (e *examiner) examine(ctx context.Context) (complete bool) {
	nodes, err := e.b.nodes(ctx)
	complete = err == nil
	known := make(map[string]struct{}) // only those of now are kept
	for _, node := range nodes {
		s, err := ask(ctx, node)
		if err != nil {
			complete = false
			continue
		}
		_, again := e.known[s.id]
		known[s.id] = struct{}{}
		for _, warning := range e.b.warnings(s) {
			if again || ctx.Err() != nil {
				break
			}
			e.report(fmt.Errorf("%s: %w", nameOf(node), warning))
		}
	}
	if !complete {
		maps.Copy(known, e.known)
	}
	e.known = known
	return complete
}

// settings are what a server tells of itself. What it does not is empty.
type settings struct {
	id      string            // of its process
	info    map[string]string // nil: it did not tell
	saves   string            // its save points
	refusal string            // its error, to the question that was the last one then
}

// ask asks a server. An error that it answered with leaves the settings incomplete.
func ask(ctx context.Context, node redis.Cmdable) (s settings, err error) {
	defer func() {
		var refused bool
		if s.refusal, refused = serverError(err); refused {
			err = nil
		}
	}()
	text, err := node.Info(ctx).Result()
	if err != nil {
		return s, err
	}
	s.info = make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			s.info[name] = value
		}
	}
	s.id = s.info["run_id"]
	saves, err := node.ConfigGet(ctx, "save").Result()
	s.saves = saves["save"]
	return s, err
}

// warnings are what in the settings endangers locks.
func (b *backend) warnings(s settings) (warnings []error) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Errorf(format, args...)) }
	if s.info == nil {
		warn("whether it evicts or forgets keys cannot be told: INFO: %s", s.refusal)
		return warnings
	}
	switch policy := s.info["maxmemory_policy"]; {
	case policy == "" || policy == "noeviction":
	case s.info["maxmemory"] == "0":
		warn("it would evict keys, and locks with them, if there were a maxmemory: maxmemory-policy is %s, not noeviction", policy)
	default:
		warn("it evicts keys, and locks with them, when its memory is full: maxmemory is %s bytes and maxmemory-policy %s, not noeviction",
			s.info["maxmemory"], policy)
	}
	if s.info["aof_enabled"] == "0" {
		switch {
		case s.refusal != "":
			warn("without appendonly it may forget its keys in a restart; whether there are save points cannot be told: CONFIG GET: %s", s.refusal)
		case s.saves == "":
			warn("it forgets its keys in a restart, and gives locks that are held to others: there are no save points, and appendonly is no; " +
				"set appendonly yes")
		}
	}
	n, _ := strconv.Atoi(s.info["connected_slaves"])
	switch want := b.replicas.want; {
	case s.info["role"] == "slave":
		warn("it is a replica: locks have to be taken on its master")
	case n > 0 && want == 0:
		warn("it has replicas (%d) and writes wait for none of them: a failover may give a held lock to another; set Replicas", n)
	case n > want:
		warn("it has %d replicas and writes wait for %d: one of the others may become the master, and give locks that are held to others",
			n, want)
	}
	return warnings
}

// nameOf is the server's address. Behind Sentinel the client does not have one.
func nameOf(node redis.Cmdable) string {
	if c, ok := node.(*redis.Client); ok {
		if _, _, err := net.SplitHostPort(c.Options().Addr); err == nil {
			return c.Options().Addr
		}
	}
	return "the server"
}
