package conformance

import (
	"slices"

	"github.com/go-locker/locker"
)

// Case is one check of one rule of the contract.
type Case struct {
	// ID is the rule's id and the case's name: "R2/cancelled-context". It does
	// not change.
	ID string

	// Rule is the sentence that has to hold.
	Rule string

	// Level says how binding the rule is.
	Level Level

	// Needs and Uses are what the Locker has to declare, and what the Harness
	// has to offer, for the case to run. Otherwise it is skipped, as it is on a
	// Locker that declares one of Except: they promise less where the case looks.
	Needs  locker.Capability
	Uses   Part
	Except locker.Capability

	// Cites are ids of failures seen in the field that the case would have
	// found; docs/contract.md has a line about each.
	Cites []string

	run func(*trial)
}

// Level says how binding a rule is.
type Level string

// The levels. A failed Should is reported, but fails nobody.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
)

// Part is a set of optional parts of a Harness, and of the system it runs on.
type Part uint8

// The parts that a case can use.
const (
	PartNames     Part = 1 << iota // Harness.Names
	PartProcesses                  // Harness.Env
	PartStop                       // processes can be stopped, by SIGSTOP
	PartNetwork                    // Harness.OpenVia
	PartServer                     // Harness.Server
	PartRequests                   // Harness.Requests
)

var partNames = []string{"Harness.Names", "Harness.Env", "SIGSTOP", "Harness.OpenVia", "Harness.Server", "Harness.Requests"}

// Strings lists the names of the parts in p.
func (p Part) Strings() []string {
	var names []string
	for i, name := range partNames {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Cases returns the table, in the order in which it is run.
func Cases() []Case {
	table := slices.Concat(
		grantCases, grantFaults, holdCases, holdFaults, releaseCases, releaseFaults,
		waitCases, waitFaults, keyCases, houseCases, houseFaults,
	)
	for i := range table {
		if table[i].Level == "" {
			table[i].Level = Must
		}
	}
	return table
}
