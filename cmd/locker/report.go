package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
)

// run is one run of the suite.
type run struct {
	*conformance.Report
	store       string // without credentials
	start       time.Time
	interrupted bool
}

// storeOf is what a report may show of a URL: a password can be anywhere else in it.
func storeOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

func (r run) count(status conformance.Status, level conformance.Level) (n int) {
	for _, res := range r.Results {
		if res.Status == status && res.Case.Level == level {
			n++
		}
	}
	return n
}

// tested reports whether any case was more than skipped.
func (r run) tested() bool {
	return slices.ContainsFunc(r.Results, func(res conformance.Result) bool { return res.Status != conformance.Skip })
}

// reportVersion changes when a field of the JSON report changes its meaning or goes.
const reportVersion = 1

type jsonReport struct {
	Version       int                        `json:"version"`
	Store         string                     `json:"store"`
	Backend       string                     `json:"backend"`
	Capabilities  []string                   `json:"capabilities"`
	Started       time.Time                  `json:"started"`
	Seconds       float64                    `json:"seconds"`
	OK            bool                       `json:"ok"` // something was tested, no MUST failed, nothing broke, all was run
	Interrupted   bool                       `json:"interrupted"`
	Summary       string                     `json:"summary"`
	Count         map[conformance.Status]int `json:"count"`
	NotApplicable int                        `json:"not_applicable"`
	Cases         []jsonCase                 `json:"cases"`
}

type jsonCase struct {
	ID       string             `json:"id"`
	Rule     string             `json:"rule"`
	Level    conformance.Level  `json:"level"`
	Status   conformance.Status `json:"status"`
	Reason   string             `json:"reason,omitempty"`
	Failures []jsonFailure      `json:"failures,omitempty"`
	Seconds  float64            `json:"seconds"`
}

type jsonFailure struct {
	Seen   string `json:"seen"`
	Wanted string `json:"wanted"`
	Place  string `json:"place"`
	Times  int    `json:"times"`
}

func writeJSON(w io.Writer, r run) error {
	out := jsonReport{
		Version: reportVersion, Store: r.store, Backend: r.Backend, Capabilities: capabilities(r.Can),
		Started: r.start.UTC(), Seconds: time.Since(r.start).Seconds(), OK: r.OK() && r.tested(), Interrupted: r.interrupted,
		Summary: r.Summary(), Count: make(map[conformance.Status]int), NotApplicable: r.NotApplicable,
	}
	for _, res := range r.Results {
		c := jsonCase{
			ID: res.Case.ID, Rule: res.Case.Rule, Level: res.Case.Level,
			Status: res.Status, Reason: res.Reason, Seconds: res.Took.Seconds(),
		}
		for _, f := range res.Failures {
			c.Failures = append(c.Failures, jsonFailure(f))
		}
		out.Count[res.Status]++
		out.Cases = append(out.Cases, c)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

func capabilities(can locker.Capability) []string {
	if can == 0 {
		return []string{}
	}
	return strings.Split(can.String(), ", ")
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     float64     `xml:"time,attr"`
	Started  string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string     `xml:"classname,attr"`
	Name    string     `xml:"name,attr"`
	Time    float64    `xml:"time,attr"`
	Failure *junitText `xml:"failure"`
	Error   *junitText `xml:"error"`
	Skipped *junitText `xml:"skipped"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// writeJUnit writes what CI servers read. A failed SHOULD fails nobody: it is shown as
// skipped, with what was seen.
func writeJUnit(w io.Writer, r run) error {
	suite := junitSuite{
		Name: fmt.Sprintf("locker conformance of %s (%s)", r.store, r.Backend), Tests: len(r.Results),
		Time: time.Since(r.start).Seconds(), Started: r.start.UTC().Format("2006-01-02T15:04:05"),
	}
	for _, res := range r.Results {
		chapter, _, _ := strings.Cut(res.Case.ID, "/")
		c := junitCase{Class: "conformance." + chapter, Name: res.Case.ID, Time: res.Took.Seconds()}
		text := &junitText{Message: res.Reason, Text: res.String()}
		if len(res.Failures) > 0 {
			text.Message = res.Failures[0].Seen
		}
		switch {
		case res.Status == conformance.Error:
			c.Error = text
			suite.Errors++
		case res.Status == conformance.Fail && res.Case.Level == conformance.Must:
			c.Failure = text
			suite.Failures++
		case res.Status != conformance.Pass:
			c.Skipped = text
			suite.Skipped++
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []junitSuite
	}{Suites: []junitSuite{suite}}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
