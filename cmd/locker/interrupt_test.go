//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConformance_interruptedItReportsWhatRan(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "report.json")
	p := w.start("conformance", "-json", file)
	p.await("pass  G1/goroutines")
	p.signal(syscall.SIGINT)
	p.requireExit(2)
	rest := strings.Split(strings.TrimSpace(p.rest()), "\n")
	assert.NotContains(t, strings.Join(rest, "\n"), "not run")
	assert.Contains(t, rest[len(rest)-1], " cases: ")
	assert.Contains(t, p.errText(), "interrupted")

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var got jsonReport
	require.NoError(t, json.Unmarshal(text, &got))
	assert.True(t, got.Interrupted)
	assert.False(t, got.OK)
	assert.Equal(t, "G1/goroutines", got.Cases[0].ID)
}
