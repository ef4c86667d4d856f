package main

import (
	"fmt"
	"io"

	"github.com/go-locker/locker/conformance"
)

// list prints the cases, with what the command needs for those that it does not always
// run.
func list(w io.Writer, cases []conformance.Case) {
	for _, c := range cases {
		fmt.Fprintf(w, "%-30s %-6s %s", c.ID, c.Level, c.Rule)
		if need := needOf(c); need != "" {
			fmt.Fprintf(w, " [%s]", need)
		}
		fmt.Fprintln(w)
	}
}

// needOf says what a case needs that is not there on every run: nothing, a flag, or a
// program that gives the suite what the command cannot.
func needOf(c conformance.Case) string {
	for _, p := range []struct {
		part conformance.Part
		need string
	}{
		{conformance.PartServer, "only from Go: it breaks the server"},
		{conformance.PartNames, "only from Go: it lists the store's names"},
		{conformance.PartRequests, "only from Go: it counts the requests"},
		{conformance.PartNetwork, "needs --faults"},
	} {
		if c.Uses&p.part != 0 {
			return p.need
		}
	}
	return ""
}

// explained is a result whose reason for a skip speaks of the command. That of the
// suite names the field of a Harness.
func explained(h conformance.Harness, r conformance.Result) conformance.Result {
	if r.Status != conformance.Skip {
		return r
	}
	lacks, need := r.Case.Needs&^h.Can, needOf(r.Case)
	switch {
	case lacks != 0:
		r.Reason = "the store does not offer: " + lacks.String()
	case r.Case.Except&h.Can != 0:
		r.Reason = "not for a store that offers: " + (r.Case.Except & h.Can).String()
	case h.Env == nil && r.Case.Uses&(conformance.PartNetwork|conformance.PartServer) != 0:
		r.Reason = "this store has no connections to break, and no server"
	case need != "":
		r.Reason = need
	default:
		r.Reason = "this system cannot stop a process"
	}
	return r
}
