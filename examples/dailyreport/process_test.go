package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Short times would only make it fail on a busy machine: what is seen here is that
// processes do what the goroutines of the other tests do, and how one of them dies.
func TestProcesses_playTheWholeStory(t *testing.T) {
	url := startRedis(t)
	var out, errOut bytes.Buffer
	code := run(t.Context(), []string{"-url", url, "-instances", "3", "-job", "100ms", "-skew", "200ms"}, &out, &errOut)
	t.Log(out.String())
	require.Zero(t, code, errOut.String())
	requireWholeStory(t, out.String())
	require.Len(t, linesWith(out.String(), "is gone: signal: killed"), 1)
	require.NotEmpty(t, linesWith(out.String(), "is at it, lease ends in"))
}
