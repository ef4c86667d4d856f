package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-locker/locker"
)

// archive keeps what the clients of a history were told, and the registers.
type archive struct {
	mu        sync.Mutex
	claims    map[claimID]*claimed
	registers map[string]*register
	broken    []string
	held      int
	failed    int
	stale     int
	fenced    int
	writes    int
}

func newArchive() *archive {
	return &archive{claims: make(map[claimID]*claimed), registers: make(map[string]*register)}
}

type claimID struct{ process, client, attempt int }

// claimed is one acquire and, if it was granted, the claim that followed.
type claimed struct {
	claimID
	key               string
	asked, until      time.Duration
	answered, granted time.Duration // 0: not
	inTime            bool          // granted before its own Deadline
	ended             time.Duration // 0: not
	fate              string        // how it ended
	lost              bool
	session           bool          // with the store's session
	deadline          time.Duration // the last one that was told
	owner             string
	token             uint64
	outlived          time.Duration // when Err was nil after the Deadline
	holder            string        // who has the key, as it was told
}

// register is data that clients update under its key's lock.
type register struct {
	fence        uint64
	value, loose int
}

// take records a note, and answers it if it asks the register.
func (a *archive) take(n note) *ruling {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := claimID{n.Process, n.Client, n.Attempt}
	c := a.claims[id]
	if c == nil {
		c = &claimed{claimID: id, key: n.Key}
		a.claims[id] = c
	}
	if n.Deadline != 0 {
		c.deadline = n.Deadline
	}
	switch n.What {
	case noteAsk:
		c.asked, c.until = n.At, n.Until
	case noteGot:
		c.answered, c.granted, c.token, c.owner = n.At, n.At, n.Token, n.Owner
		c.inTime = n.At < n.Deadline
	case noteRefused:
		c.answered, c.holder = n.At, n.Owner
		if n.Held {
			a.held++
		} else {
			a.failed++
		}
	case noteAlive:
		if n.At > n.Deadline {
			c.outlived = n.At
		}
	case noteLost:
		c.lost, c.session = true, n.Session
		c.end(n.At, "lost: "+n.Text)
	case noteRelease:
		c.end(n.At, "released")
	case noteBroken:
		a.broken = append(a.broken, fmt.Sprintf("%v: %s", c, n.Text))
	case noteRead, noteWrite:
		return a.rule(c, n)
	}
	return nil
}

// end ends the claim, if it has not ended yet.
func (c *claimed) end(at time.Duration, fate string) {
	if c.ended == 0 {
		c.ended, c.fate = min(at, c.deadline), fate
		if c.deadline < at {
			c.fate += ", after its Deadline"
		}
	}
}

func (c *claimed) String() string {
	return fmt.Sprintf("process %d, client %d, attempt %d on %s (token %d)", c.process, c.client, c.attempt, c.key, c.token)
}

// rule serves the register of a key. A read lifts the fence, too: what was written on
// the strength of an older one would overwrite unseen what the reader does.
func (a *archive) rule(c *claimed, n note) *ruling {
	r := a.registers[n.Key]
	if r == nil {
		r = &register{}
		a.registers[n.Key] = r
	}
	reply := &ruling{Client: n.Client, OK: n.Token >= r.fence}
	if reply.OK {
		r.fence = n.Token
	} else {
		a.fenced++
	}
	if n.What == noteWrite {
		if n.Loose != r.loose+1 {
			a.stale++
		}
		r.loose = n.Loose
		if reply.OK {
			a.writes++
			if n.Value != r.value+1 {
				a.broken = append(a.broken, fmt.Sprintf("%v: wrote %d over %d through the fence: an update is lost", c, n.Value, r.value))
			}
			r.value = n.Value
		}
	}
	reply.Value, reply.Loose = r.value, r.loose
	return reply
}

// pushBound is how long the end of a store's session may be on its way to those who have a
// lock on it (H5). The store gives their keys to others meanwhile.
const pushBound = 50 * time.Millisecond

// killed notes that a process has come to its end, at the earliest at this moment.
func (a *archive) killed(process int, at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.claims {
		if c.process == process {
			if c.granted != 0 {
				c.end(max(at, c.granted), "killed")
			} else if c.answered == 0 {
				c.answered = max(at, c.asked)
			}
		}
	}
}

// check judges what was recorded of a Locker that can do so much.
func (a *archive) check(can locker.Capability, stops, outages []span) *HistoryResult {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := &HistoryResult{
		Held: a.held, Failures: a.failed, Writes: a.writes, Fenced: a.fenced, Stale: a.stale,
		Violations: a.broken,
	}
	broken := func(format string, args ...any) {
		res.Violations = append(res.Violations, fmt.Sprintf(format, args...))
	}
	byKey := make(map[string][]*claimed)
	byOwner := make(map[string]*claimed)
	for _, c := range a.claims {
		if c.granted != 0 {
			byOwner[c.owner] = c
			res.Grants++
			switch {
			case c.ended == 0:
				c.ended, c.fate = c.deadline, "left alone"
			case c.session && can.Has(locker.CapPushLoss):
				c.ended = max(c.granted, undisturbed(c.process, c.ended, pushBound, slices.Concat(stops, outages)))
			}
			byKey[c.key] = append(byKey[c.key], c)
		}
		if c.lost {
			res.Losses++
		}
		if c.outlived != 0 {
			broken("%v: Err was nil %v after its Deadline", c, c.outlived-c.deadline)
		}
		if late := c.answered - c.until; late > prompt && !stood(c.process, c.asked, c.answered, stops) {
			broken("%v: answered %v after the end of its context", c, late)
		}
		if c.answered == 0 {
			broken("%v: never answered", c)
		}
	}
	for _, c := range a.claims {
		if holder := byOwner[c.holder]; holder != nil && holder.key != c.key {
			broken("%v: told that the holder of another key has it: %v", c, holder)
		}
	}
	for _, claims := range byKey {
		overlaps(claims, broken)
		if can.Has(locker.CapToken) {
			tokensRise(claims, broken)
		}
	}
	slices.Sort(res.Violations)
	return res
}

// stood reports whether the process stood still, or a server, at any time of it.
func stood(process int, from, to time.Duration, stops []span) bool {
	for _, s := range stops {
		if (s.process == process || s.process == 0) && s.from < to && from < s.to {
			return true
		}
	}
	return false
}

// undisturbed is the moment between which and at the process had d without any of the
// spans that concern it.
func undisturbed(process int, at, d time.Duration, spans []span) time.Duration {
	for d > 0 {
		last := at - d
		for _, s := range spans {
			switch {
			case s.process != process && s.process != 0:
			case s.from < at && at <= s.to:
				return undisturbed(process, s.from, d, spans)
			case s.to < at:
				last = max(last, s.to)
			}
		}
		at, d = last, d-(at-last)
	}
	return at
}

// overlaps looks for two claims at the same time.
func overlaps(claims []*claimed, broken func(string, ...any)) {
	slices.SortFunc(claims, func(x, y *claimed) int {
		return cmp.Or(cmp.Compare(x.granted, y.granted), cmp.Compare(x.token, y.token))
	})
	var last *claimed // the claim that ends last
	for _, c := range claims {
		if last != nil && c.granted < last.ended && c.granted < c.ended {
			broken("two holders for %v: %v, which was %s, and %v", min(last.ended, c.ended)-c.granted, last, last.fate, c)
		}
		if last == nil || c.ended > last.ended {
			last = c
		}
	}
}

// tokensRise compares the tokens in the order of the grants. That is the order in which
// they were told: a lock that was told before its Deadline was in the store from its
// grant until then, and no other meanwhile.
func tokensRise(claims []*claimed, broken func(string, ...any)) {
	var top *claimed
	for _, c := range claims { // overlaps has sorted them
		if !c.inTime {
			continue // its process stood still when it was told
		}
		if top != nil && c.token <= top.token {
			broken("a token that does not rise: %v, after %v", c, top)
		}
		if top == nil || c.token > top.token {
			top = c
		}
	}
}
