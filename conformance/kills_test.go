package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker/conformance"
)

var update = flag.Bool("update", false, "write golden files and docs/contract.md anew")

// byChance reports whether a case notices a mutant only now and then, because a context ends
// just before something looks at it, or just after. It has no place in the table then.
func byChance(meant, id string) bool {
	switch id, _, _ := strings.Cut(id, "/"); id {
	case "G2":
		return meant == "R2/cancelled-context"
	case "G4":
		return strings.HasPrefix(meant, "G6/")
	}
	return false
}

// TestMutants_areKilled runs every case on every mutant.
func TestMutants_areKilled(t *testing.T) {
	killer := make(map[string]bool)
	var table strings.Builder
	for _, m := range slices.Concat(mutants, faultMutants) {
		t.Run(m.name, func(t *testing.T) {
			var kills []string
			for _, c := range bubbleCases() {
				if broken(c) && !broken(caseOf(m.meant)) {
					continue // what shows without a fault is shown there
				}
				if r := judge(t, c.ID, m.set); r.Status != conformance.Pass && r.Status != conformance.Skip {
					require.Equal(t, conformance.Fail, r.Status, "%v", r)
					kills = append(kills, c.ID)
					killer[c.ID] = true
				}
			}
			require.Contains(t, kills, m.meant)
			fmt.Fprintf(&table, "%s\n\tmeant for %s\n", m.name, m.meant)
			if broken(caseOf(m.meant)) {
				return // which other cases notice depends on who is first
			}
			for _, id := range kills {
				if id != m.meant && !byChance(m.meant, id) {
					fmt.Fprintf(&table, "\talso %s\n", id)
				}
			}
		})
	}
	for _, c := range bubbleCases() {
		if !killer[c.ID] {
			t.Errorf("no mutant fails %s: nothing shows that the case can fail", c.ID)
		}
	}
	golden(t, "testdata/kills.golden", table.String())
}

// golden compares text with the file, or writes it.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if text != string(want) {
		lines, wanted := strings.Split(text, "\n"), strings.Split(string(want), "\n")
		for i, line := range lines {
			if i >= len(wanted) || line != wanted[i] {
				t.Fatalf("%s is stale at line %d, %q: if that is right, go generate ./conformance", file, i+1, line)
			}
		}
		t.Fatalf("%s is stale at its end: if that is right, go generate ./conformance", file)
	}
}
