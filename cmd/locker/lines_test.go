package main

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lines is what a program has written, for tests that wait for a part of it.
type lines struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{} // closed by the next write
}

func newLines() *lines { return &lines{changed: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) await(t *testing.T, part string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		text, changed := l.text.String(), l.changed
		l.mu.Unlock()
		if strings.Contains(text, part) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Failf(t, "it does not say it", "%q is not in:\n%s", part, text)
		}
	}
}
