package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-locker/locker"
)

// Status is the outcome of a case.
type Status string

// The outcomes.
const (
	Pass  Status = "pass"
	Skip  Status = "skip"  // the Locker or the Harness lacks what the case needs
	Fail  Status = "fail"  // the rule is broken
	Error Status = "error" // the suite or the Harness broke: nothing was judged
)

// Result is one case's outcome.
type Result struct {
	Case     Case
	Status   Status
	Reason   string    // of a Skip or an Error
	Failures []Failure // of a Fail
	Figures  []Figure  // in the order in which they were measured
	Took     time.Duration
}

// Figure is something that a case has measured, such as how long before the next
// grant a loss was told. It decides nothing: it is for those who compare runs.
type Figure struct {
	Name  string // the same in each run of the case
	Value time.Duration
}

// Failure is one broken expectation.
type Failure struct {
	Seen   string // the first time
	Wanted string
	Place  string // file:line of the case
	Times  int
}

// String tells a Result in full: one line, and what was seen, wanted, the rule
// and the place where it did not go well.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %s", r.Status, r.Case.ID)
	if r.Reason != "" {
		fmt.Fprintf(&b, ": %s", r.Reason)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "\n\tseen:   %s\n\twanted: %s\n\trule:   %s %s\n\tat:     %s",
			f.Seen, f.Wanted, r.Case.Level, r.Case.Rule, f.Place)
		if f.Times > 1 {
			fmt.Fprintf(&b, ", %d times", f.Times)
		}
	}
	return b.String()
}

// Report is the outcome of a run.
type Report struct {
	Backend string // its name, where the Locker tells
	Can     locker.Capability
	Results []Result

	// NotApplicable counts the cases that are about another kind of store: those
	// that need several processes, where the store is the memory of one.
	NotApplicable int
}

// OK reports that no Must failed and nothing broke.
func (r *Report) OK() bool {
	for _, res := range r.Results {
		if res.Status == Error || res.Status == Fail && res.Case.Level == Must {
			return false
		}
	}
	return true
}

// Summary is one line: how many cases ended how, and what the skipped ones
// missed.
func (r *Report) Summary() string {
	count := make(map[Status]int)
	missing := make(map[string]int)
	var reasons []string // in table order
	shoulds := 0
	for _, res := range r.Results {
		count[res.Status]++
		if res.Status == Fail && res.Case.Level == Should {
			shoulds++
		}
		if res.Status == Skip {
			if missing[res.Reason] == 0 {
				reasons = append(reasons, res.Reason)
			}
			missing[res.Reason]++
		}
	}
	s := fmt.Sprintf("%d cases: %d pass, %d skip, %d fail, %d error",
		len(r.Results), count[Pass], count[Skip], count[Fail], count[Error])
	if shoulds > 0 {
		s += fmt.Sprintf(" (%d of the failed are %s)", shoulds, Should)
	}
	if r.NotApplicable > 0 {
		s += fmt.Sprintf(", %d about other kinds of stores", r.NotApplicable)
	}
	for i, reason := range reasons {
		sep := ", "
		if i == 0 {
			sep = "; skipped: "
		}
		s += fmt.Sprintf("%s%d × %s", sep, missing[reason], reason)
	}
	return s
}
