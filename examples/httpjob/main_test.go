package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun_tellsByItsExitCode(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"-h", 0, "how long the job takes"},
		{"-job 50ms", 0, "409 Conflict: job already running"},
		{"-instances 1", 2, "two instances at least"},
		{"-ttl 1ms", 2, "too short"},
		{"-job -1s", 2, "negative"},
		{"today", 2, `unexpected argument "today"`},
		{"-url ftp://me:secret@localhost", 1, `unknown scheme "ftp"`},
		{"-url redis://127.0.0.1:1", 1, "503 Service Unavailable"},
		{"-listen nowhere", 1, "nowhere"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out bytes.Buffer
			code := run(t.Context(), strings.Fields(tc.args), &out, &out)
			require.Equal(t, tc.code, code, out.String())
			require.Contains(t, out.String(), tc.says)
			require.NotContains(t, out.String(), "secret")
		})
	}
}

func TestRun_playsTheWholeStory(t *testing.T) {
	requireStory := func(t *testing.T, args ...string) {
		var out bytes.Buffer
		require.Zero(t, run(t.Context(), args, &out, &out), &out)
		t.Log(out.String())
		for text, times := range map[string]int{
			"202 Accepted": 5, "409 Conflict": 3, "200 OK: done": 3, "200 OK: lost": 1,
			"stopped (the instance is shutting down)": 1, "503 Service Unavailable": 1,
		} {
			require.Equal(t, times, strings.Count(out.String(), text), text)
		}
	}
	t.Run("memory", func(t *testing.T) { requireStory(t, "-instances", "4", "-job", "100ms") })
	t.Run("redis", func(t *testing.T) {
		srv, _ := onRedis(t)
		requireStory(t, "-instances", "4", "-url", srv.URL())
	})
}

func TestListen_servesUntilItIsTold(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out, told := io.Pipe()
	code := make(chan int, 1)
	go func() {
		defer told.Close()
		code <- run(ctx, []string{"-listen", "127.0.0.1:0", "-job", "1h", "-drain", "10ms"}, told, t.Output())
	}()
	text := make([]byte, 1000)
	n, err := out.Read(text)
	require.NoError(t, err)
	url := regexp.MustCompile(`http://\S+`).FindString(string(text[:n]))
	resp, err := http.Post(url, "", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusAccepted, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	stop()
	_, err = io.Copy(t.Output(), out)
	require.NoError(t, err)
	require.Zero(t, await(t, code))
}

func TestRuns_aRequestThatStoodStillHidesNoLaterRun(t *testing.T) { // C46
	rs := newRuns(t.Logf)
	rs.keep(record{Job: "report", Token: 8, State: running})
	rs.keep(record{Job: "report", Token: 7, State: running}) // whose lease was over when it went on
	last, ok := rs.last("report")
	require.True(t, ok)
	require.EqualValues(t, 8, last.Token)
}
