package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance/faultnet"
)

// HistoryConfig is one random history: who does what, and what breaks meanwhile.
// The zero values have defaults; negative ones are an error.
type HistoryConfig struct {
	// Seed chooses what every client does and which faults strike when. The same
	// seed with the same settings makes the same choices again; what the machine
	// does between them can differ.
	Seed uint64

	Processes int           // default: 4, each with two clients that share a Locker
	Keys      int           // default: 2
	Length    time.Duration // of the time with faults; default: 12 TTLs of the Harness

	// KillServer has servers killed and restarted, where the Harness has a Server.
	// It is for stores that keep what they have confirmed.
	KillServer bool
}

// HistoryResult is what a history was, and what it broke.
type HistoryResult struct {
	Seed       uint64
	Took       time.Duration
	Grants     int            // locks handed out
	Losses     int            // locks that were lost, and said so
	Held       int            // attempts that were told who has the key
	Failures   int            // attempts that had another error
	Writes     int            // writes that the fenced register took
	Fenced     int            // reads and writes that it refused, for an old token
	Stale      int            // of the writes to a register without a fence, those that overwrote another's
	Faults     map[string]int // how often each struck
	Violations []string       // of the contract; none is the aim
}

// String tells the result in one line, and each violation in one of its own.
func (r *HistoryResult) String() string {
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(r.Faults)) {
		faults = append(faults, fmt.Sprintf("%d %s", r.Faults[name], name))
	}
	if len(faults) == 0 {
		faults = []string{"none, the Harness has no means"}
	}
	s := fmt.Sprintf("seed %d: %d grants, %d lost, %d held, %d errors; %d fenced writes, %d refused, %d overwritten without the fence; faults: %s; %d violations",
		r.Seed, r.Grants, r.Losses, r.Held, r.Failures, r.Writes, r.Fenced, r.Stale, strings.Join(faults, ", "), len(r.Violations))
	for _, v := range r.Violations {
		s += "\n\t" + v
	}
	return s
}

// History lets several processes contend for a few keys while faults strike at
// random: connections that break in every way, processes that are stopped or
// killed, servers that are frozen or crash, as far as h has the means. It records
// all that the clients were told, by one clock, and then checks:
//   - no two claims on a key overlap: a claim lasts from the return of the acquire
//     until its release was called, its loss was told, its own Deadline, or its
//     process was about to be killed, whichever was first. On a store that pushes the end of a
//     session, which has freed the key by then, a claim that was lost with one ends 50 ms
//     before that was told (H5), in which nothing stood still or was cut off;
//   - no lock is believed in after its own Deadline;
//   - tokens rise in the order of the grants, where there are tokens;
//   - who is told that a key is held is not told the holder of another key;
//   - no update is lost of a register that refuses old tokens;
//   - an Extend that says lost is right;
//   - no acquire outlasts its context;
//   - when the faults are over, every client is served.
//
// The moments are the clients' own. What a store does between them, such as the
// very instant at which it lets a lease go, is not seen; that is also why no model
// is searched for a possible order of the operations: a lease may end at any time
// in an interval as long as itself, and a TryAcquire may by contract repeat an
// answer that is still valid, so that nearly every order would be possible. The
// checks here name the two claims that collide.
//
// With a Harness that has an Env the clients are processes, as those of Check: the
// program has to call Child first. Without, they are goroutines of this process. It has
// to have the server and the network to itself, as Server and OpenVia say.
//
// The error is about the Harness or cfg, not about the locks. History blocks for Length
// and then as long as it takes to serve everybody once more, or until ctx ends, which
// is an error.
//
// Under go test use RunHistory.
func History(ctx context.Context, h Harness, cfg HistoryConfig) (*HistoryResult, error) {
	return history(ctx, h, cfg, programProcess())
}

// RunHistory is History under go test: a violation fails t, and the result is logged.
// The processes are copies of this test binary that run the calling test, as those of
// Run: it has to be a test that plays one history only, reached by its name alone.
func RunHistory(t *testing.T, h Harness, cfg HistoryConfig) {
	if serving, mine := childOf(t.Name()); serving {
		if mine {
			serveChild(t.Context(), &h)
		}
		t.SkipNow()
	}
	r, err := history(t.Context(), h, cfg, testProcess(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if len(r.Violations) > 0 {
		t.Errorf("%d violations", len(r.Violations))
	}
}

func history(ctx context.Context, h Harness, cfg HistoryConfig, p process) (*HistoryResult, error) {
	if cfg.Processes < 0 || cfg.Keys < 0 || cfg.Length < 0 {
		return nil, fmt.Errorf("a negative setting of the history: %+v", cfg)
	}
	cfg.Processes, cfg.Keys = cmp.Or(cfg.Processes, 4), cmp.Or(cfg.Keys, 2)
	s := newSuite(ctx, h, p)
	if s.broken != nil {
		return nil, s.broken
	}
	return s.history(ctx, cfg)
}

func (s *suite) history(outer context.Context, cfg HistoryConfig) (*HistoryResult, error) {
	cfg.Length = cmp.Or(cfg.Length, 12*s.h.TTL)
	ctx, cancel := context.WithTimeoutCause(outer, cfg.Length+30*s.h.TTL+2*time.Minute, errStuck)
	defer cancel()
	start := time.Now()
	t := &trial{ctx: ctx, suite: s, ttl: s.h.TTL, name: fmt.Sprintf("%s/history-%d", s.prefix, cfg.Seed)}
	a := newArchive()
	clock := ownClock()
	if s.h.Env != nil {
		clock = machineClock
	}
	m := &mischief{t: t, now: clock, cfg: cfg, archive: a, faults: make(map[string]int)}
	for i := range cfg.Keys {
		m.keys = append(m.keys, t.named(fmt.Sprintf("key-%d", i)))
	}
	<-t.start(m.run)
	t.close()
	if outer.Err() != nil { // what was cut short says nothing
		return nil, context.Cause(outer)
	}
	r := t.result()
	if r.Status == Error {
		return nil, errors.New(r.Reason)
	}
	res := a.check(s.info.Can, m.stops, m.outages)
	res.Seed, res.Took, res.Faults = cfg.Seed, time.Since(start), m.faults
	for _, f := range r.Failures {
		res.Violations = append(res.Violations, fmt.Sprintf("%s: seen: %s; wanted: %s", f.Place, f.Seen, f.Wanted))
	}
	return res, nil
}

// mischief runs a history: it starts the clients, and breaks things.
type mischief struct {
	t       *trial
	now     clock
	cfg     HistoryConfig
	keys    []string
	archive *archive
	actors  []*actor
	started int
	end     time.Duration
	faults  map[string]int
	stops   []span // in which a process, or a server, stood still
	outages []span // in which a process had a broken network
}

// span is a time by the history's clock.
type span struct {
	process  int // 0: a server
	from, to time.Duration
}

// actor is a process with clients, or goroutines in their place.
type actor struct {
	n       int
	child   *child            // nil: goroutines here
	net     *faultnet.Network // of the goroutines; nil without OpenVia
	play    func(role) (done <-chan struct{})
	done    <-chan struct{}
	stopped time.Duration // since; 0: it runs
	broken  time.Duration // since when its network is; 0: it is not
	due     time.Duration // when what was done to it is over
}

func (m *mischief) run() {
	rng := rand.New(rand.NewPCG(m.cfg.Seed, 0))
	for range m.cfg.Processes {
		m.actors = append(m.actors, m.cast())
	}
	m.end = m.now() + m.cfg.Length // a process may take long to start
	for _, a := range m.actors {
		m.enter(a)
	}
	for m.now() < m.end {
		m.t.pass(m.part(rng, 0.05, 0.5))
		m.mend(m.now())
		m.strike(rng)
	}
	m.mend(math.MaxInt64)
	for _, a := range m.actors {
		m.t.must(within(a.done, time.Minute+10*m.t.ttl), "an end of every client, now that nothing breaks", "process %d goes on", a.n)
	}
}

// part is a random time between two multiples of the TTL.
func (m *mischief) part(rng *rand.Rand, least, most float64) time.Duration {
	return time.Duration((least + rng.Float64()*(most-least)) * float64(m.t.ttl))
}

// cast starts one more process.
func (m *mischief) cast() *actor {
	m.started++
	a := &actor{n: m.started}
	if m.t.suite.h.Env != nil {
		a.child = m.t.child()
		a.play = func(r role) <-chan struct{} { return a.child.play(r, m.archive.take) }
		return a
	}
	var l locker.Locker
	if m.t.suite.h.OpenVia != nil {
		l, a.net = m.t.openVia()
	} else {
		l = m.t.open()
	}
	var s *stage
	s = newStage(m.now, func(n note) {
		if reply := m.archive.take(n); reply != nil {
			s.rule(*reply)
		}
	})
	a.play = func(r role) <-chan struct{} { return m.t.start(func() { s.play(m.t.ctx, l, r) }) }
	return a
}

// enter has its clients play from now until the end.
func (m *mischief) enter(a *actor) {
	a.done = a.play(role{
		Process: a.n, Seed: m.cfg.Seed, Keys: m.keys, TTL: m.t.ttl,
		Length: max(m.end-m.now(), 0),
	})
}

// strike does one random thing.
func (m *mischief) strike(rng *rand.Rand) {
	a := m.actors[rng.IntN(len(m.actors))]
	h := &m.t.suite.h
	what, lasts := rng.IntN(100), m.part(rng, 0.1, 2)
	switch {
	case what < 10 && h.Server != nil:
		m.faults["server frozen"]++
		from := m.now()
		m.t.pauseServer()
		m.t.pass(min(lasts, m.t.ttl*3/2))
		m.t.resumeServer()
		m.stops = append(m.stops, span{0, from, m.now()})
	case what < 16 && h.Server != nil && m.cfg.KillServer:
		m.faults["server killed"]++
		from := m.now()
		m.t.killServer()
		m.t.pass(lasts)
		m.t.restartServer()
		m.stops = append(m.stops, span{0, from, m.now()})
	case what < 22 && h.Server != nil && h.Server.CutOff != nil:
		m.faults["server cut off"]++
		from := m.now()
		m.t.cutServerOff()
		m.t.pass(lasts)
		m.t.reconnectServer()
		m.stops = append(m.stops, span{0, from, m.now()})
	case a.due > 0:
		// It has enough to bear.
	case what < 35 && a.child != nil && canStop:
		m.faults["process stopped"]++
		a.stopped, a.due = m.now(), m.now()+lasts*3/2
		a.child.stop()
	case what < 42 && a.child != nil:
		m.faults["process killed"]++
		from := m.now() // it dies some time after this, and a session's locks with it at once
		a.child.kill()
		m.archive.killed(a.n, from)
		for i := range m.actors {
			if m.actors[i] == a {
				m.actors[i] = m.cast()
				m.enter(m.actors[i])
			}
		}
	case h.OpenVia != nil:
		m.disturb(rng, a, lasts)
	}
}

// disturb breaks the network of a.
func (m *mischief) disturb(rng *rand.Rand, a *actor, lasts time.Duration) {
	kinds := []disturbance{
		{Name: "black hole", Fault: faultnet.BlackHole},
		{Name: "replies lost", Fault: faultnet.Mute},
		{Name: "requests lost", Fault: faultnet.Deaf},
		{Name: "refused", Fault: faultnet.Refused, Reset: true},
		{Name: "reset", Reset: true},
		{Name: "stranded", Strand: true},
		{Name: "reply dropped", Drop: 1 + rng.IntN(3)},
		{Name: "cut", Cut: 1 + rng.Int64N(2000)},
		{Name: "slow", Fault: faultnet.Fault{DelayReplies: m.part(rng, 0, 0.6)}},
		{Name: "slow out", Fault: faultnet.Fault{DelayRequests: m.part(rng, 0, 0.6)}},
	}
	d := kinds[rng.IntN(len(kinds))]
	m.faults[d.Name]++
	a.broken, a.due = m.now(), m.now()+lasts
	m.impose(a, d)
}

func (m *mischief) impose(a *actor, d disturbance) {
	if a.child != nil {
		a.child.disturb(d)
		return
	}
	d.on(a.net)
}

// mend ends what is due.
func (m *mischief) mend(at time.Duration) {
	for _, a := range m.actors {
		if a.due == 0 || a.due > at {
			continue
		}
		if a.stopped != 0 {
			a.child.resume()
			m.stops = append(m.stops, span{a.n, a.stopped, m.now()})
			a.stopped = 0
		}
		if a.broken != 0 {
			m.impose(a, disturbance{})
			m.outages = append(m.outages, span{a.n, a.broken, m.now()})
			a.broken = 0
		}
		a.due = 0
	}
}

// disturbance is something to do to a client's network. The zero one ends all that
// lasts.
type disturbance struct {
	Name          string
	Fault         faultnet.Fault
	Reset, Strand bool
	Drop          int
	Cut           int64
}

func (d disturbance) on(n *faultnet.Network) {
	n.Set(d.Fault)
	n.DropReplies(d.Drop, nil)
	if d.Cut > 0 {
		n.CutAfter(d.Cut)
	}
	if d.Strand {
		n.Strand()
	}
	if d.Reset {
		n.Reset()
	}
}
