//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestRun_exitsAsTheCommandDoes(t *testing.T) {
	w := newWorld(t)
	noProgram := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(noProgram, []byte("text"), 0o700))
	for command, code := range map[string]int{
		noProgram:                126, // known only when it is started
		"true":                   0,
		"sh -c 'exit 3'":         3,
		"sh -c 'exit 255'":       255,
		"sh -c 'kill -KILL $$'":  128 + 9,
		"sh -c 'kill -TERM $$'":  128 + 15,
		"no-such-command":        127,
		"/no/such/command":       127,
		"/etc/passwd":            126,
		"/":                      126,
		"sh -c 'exit 3' -- -n x": 3, // the command's own flags, and its own --
	} {
		t.Run(command, func(t *testing.T) {
			shell(t, w.url, `"$L" run k -- `+command).requireCode(t, code)
			w.requireFree("k") // also after a command that failed, or was killed
		})
	}
}

func TestRun_aHeldKeyIsOneOrWhatEsays(t *testing.T) {
	w := newWorld(t)
	w.hold("k", locker.WithLabel("somebody else"))
	for flags, tc := range map[string]struct {
		code int
		wait time.Duration
	}{
		"-n":               {1, 0},
		"-n -E 7":          {7, 0},
		"-nE 7":            {7, 0},
		"--nonblock -E=0":  {0, 0},
		"-w 0":             {1, 0},
		"-w 0.3":           {1, 300 * time.Millisecond},
		"--wait=300ms -E9": {64, 0}, // unlike getopt
		"-w 300ms -E 9":    {9, 300 * time.Millisecond},
	} {
		t.Run(flags, func(t *testing.T) {
			e := shell(t, w.url, `"$L" run `+flags+` k -- echo ran`)
			e.requireCode(t, tc.code)
			assert.Empty(t, e.out, "it ran")
			assert.GreaterOrEqual(t, e.took, tc.wait)
			assert.Less(t, e.took, tc.wait+5*time.Second)
			if tc.code != exitUsage {
				assert.Empty(t, e.err, "flock is quiet")
			}
		})
	}
	shell(t, w.url, `"$L" -v run -n k -- true`).requireCode(t, 1, `somebody else`)
}

func TestRun_aUsageErrorIs64BeforeAnyContact(t *testing.T) {
	const nobody = "redis://user:secret@127.0.0.1:1/0" // contact would be 69
	for args, says := range map[string]string{
		``:                                         "want: locker run",
		`redis://user:secret@host run k -- true`:   "want: locker run",
		`frobnicate`:                               "want: locker run",
		`run`:                                      "KEY -- COMMAND",
		`run k`:                                    "KEY -- COMMAND",
		`run k --`:                                 "KEY -- COMMAND",
		`run k true`:                               "no -- right behind KEY; want: locker run [flags] KEY -- COMMAND",
		`run -- true`:                              "KEY -- COMMAND",
		`run $UNSET -- rm -rf x`:                   "KEY -- COMMAND",
		`run a b -- true`:                          "no -- right behind KEY",
		`run k -n -- true`:                         "flags go before KEY; want: locker run [flags] KEY -- COMMAND",
		`run k --url redis://u:secret@h -- true`:   "flags go before KEY",
		`run "" -- true`:                           "empty key",
		`run --frob k -- true`:                     "frob",
		`run -w`:                                   "-w",
		`run -w soon k -- true`:                    "soon",
		`run -w -1s k -- true`:                     "-1s",
		`run -n -w 1 k -- true`:                    "wait",
		`run -E 256 k -- true`:                     "256",
		`run -E x k -- true`:                       `-E "x" is not a number between 0 and 255`,
		`run --ttl soon k -- true`:                 `--ttl "soon" is neither seconds`,
		`run --ttl 0 k -- true`:                    "TTL",
		`run --grace -1s k -- true`:                "--grace",
		`run --ttl 10 --grace 6 k -- true`:         "half the TTL, 5s",
		`run --ttl 1ns k -- true`:                  "TTL",
		`run --ttl 10s --grace 6s k -- true`:       "5s",
		`run --label "$(printf 'a\tb')" k -- true`: "control character",
		`--url nowhere://x run k -- true`:          "unknown scheme",
		`--url "" run k -- true`:                   "LOCKER_URL",
		`who`:                                      "KEY",
		`who a b`:                                  "KEY",
		`help redis://user:secret@host`:            "no command",
		`ls k`:                                     "no arguments",
		`ls`:                                       "--all",
		`release k`:                                "--force",
		`release --force`:                          "KEY",
		`conformance -run '('`:                     "-run",
		`conformance -run xyzzy`:                   "-list",
		`conformance -ttl 0s`:                      "-ttl",
		`conformance -json - -junit -`:             "standard output",
		`conformance a b`:                          "URL",
		`--url 'redis-cluster://127.0.0.1:1,127.0.0.2?ttl=5s' run --grace 3s k -- true`:        "2.5s",
		`--url 'redis-cluster://user:secret@[::1]:1,[::1]:2/?ttl=5s' run --grace 3s k -- true`: "2.5s",
		`--url 'redis-cluster://user:secret@[::1]:1,[::1]:2/' ls`:                              "--all",
	} {
		t.Run(args, func(t *testing.T) {
			e := shell(t, nobody, `"$L" `+args)
			e.requireCode(t, 64, says, "--help")
			e.oneLineEach(t)
			assert.NotContains(t, e.err+e.out, "secret")
			assert.NotContains(t, e.err, "strconv")
			assert.Empty(t, e.out)
		})
	}
}

func TestHelp_showsNoPassword(t *testing.T) {
	for _, args := range []string{"--help", "run --help", "conformance -h", "help", "help run", "help conformance"} {
		e := shell(t, "redis://user:secret@127.0.0.1:1/0", `"$L" `+args)
		e.requireCode(t, 0)
		assert.Contains(t, e.out, "LOCKER_URL")
		assert.NotContains(t, e.out, "secret")
	}
}

// A key of any name is a key, and not a flag or a command of ours.
func TestRun_takesAnyKey(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{"help", "run", "a b", "-n", "--", " x", "-5", "ключ", "a\nb"} {
		e := w.at("run", "--", key, "--", "sh", "-c", `printf %s "$LOCKER_KEY"`)
		e.requireCode(t, 0)
		assert.Equal(t, key, e.out)
	}
}

// G7: an outage is never reported as "held".
func TestRun_anUnreachableStoreIs69(t *testing.T) {
	t.Parallel() // with nobody but its subtests
	w := newWorld(t)
	closed := "redis://user:secret@127.0.0.1:1/0"
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() })
	blackhole := "redis://" + silent.Addr().String() + "/0"
	require.NoError(t, w.srv.Pause())
	t.Cleanup(func() { assert.NoError(t, w.srv.Resume()) })
	for name, tc := range map[string]struct{ url, args string }{
		"closed port":              {closed, "run k -- true"},
		"closed port, -n":          {closed, "run -n k -- true"},
		"closed port, -w":          {closed, "run -w 0.3 k -- true"},
		"black hole":               {blackhole, "run k -- true"},
		"black hole, -w":           {blackhole, "run -w 0.5 -E 7 k -- true"},
		"paused server, -n":        {w.url, "run -n k -- true"},
		"paused server, -w":        {w.url, "run -w 0.5 k -- true"},
		"who":                      {closed, "who k"},
		"ls":                       {closed, "ls --all"},
		"release":                  {closed, "release --force k"},
		"who on a paused server":   {w.url, "who k"},
		"a name that is not known": {"redis://nowhere.invalid:1/0", "run k -- true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := shell(t, tc.url, `"$L" `+tc.args)
			e.requireCode(t, 69, "locker: ")
			e.oneLineEach(t)
			assert.NotContains(t, e.err, "secret")
		})
	}
}

// What may have been granted is undone (G4), for which the store gets 5 s (R2). The user
// does not wait for that to hear what is wrong.
func TestRun_theCauseComesBeforeTheCleanUp(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.srv.Pause())
	began := time.Now()
	p := w.start("run", "-w", "0.2", "k", "--", "true")
	p.awaitErr("locker: acquire")
	assert.Less(t, time.Since(began), 5*time.Second, "the clean-up came first")
	require.NoError(t, w.srv.Resume())
	p.requireExit(69)
	assert.Equal(t, 1, strings.Count(p.errText(), "locker: acquire"), p.errText())
	w.requireFree("k")
}

func TestRun_aFailedReleaseIsNotCalledReleased(t *testing.T) {
	w := newWorld(t)
	p := w.start("-v", "run", "k", "--", "sh", "-c", "echo ready; read x")
	p.await("ready")
	require.NoError(t, w.redis().Set(t.Context(), "test:k", "another", 0).Err())
	require.NoError(t, p.in.Close())
	p.requireExit(75)
	assert.Contains(t, p.errText(), `release failed "k"`)
	assert.NotContains(t, p.errText(), `released "k"`)
}

// G8: the store has answered, so it is no outage.
func TestRun_aLeaseThatIsOverBeforeItBeginsIs75(t *testing.T) {
	w := newWorld(t)
	for range 20 { // the answer may be in time
		e := shell(t, w.url+"&ttl=1ms", `"$L" run k -- true`)
		e.requireCode(t, 75)
		if strings.Contains(e.err, "lease of 1ms was over before the store's answer came") {
			return
		}
	}
	require.Fail(t, "no answer was late")
}

func TestRun_memoryExcludesNobodyAndSaysSo(t *testing.T) {
	e := shell(t, "mem://", `"$L" run k -- "$L" run -n k -- echo ran`)
	e.requireCode(t, 0)
	assert.Equal(t, "ran\n", e.out)
	assert.Equal(t, 2, strings.Count(e.err, "locker: warning: mem://"), e.err)
}

func TestRun_takesSecondsAsFlockDoes(t *testing.T) {
	w := newWorld(t)
	e := w.at("run", "--ttl", "7", "--grace", "1.5", "k", "--", program, "who", "k")
	e.requireCode(t, 0)
	assert.Regexp(t, `remaining: (7|6\.\d+)s\n`, e.out)
}

func TestRun_theCommandKnowsItsLock(t *testing.T) {
	w := newWorld(t)
	e := shell(t, w.url, `"$L" run --label 'me, 5' 'a key' -- sh -c 'echo "$LOCKER_KEY"; echo "$LOCKER_OWNER"; echo "$LOCKER_TOKEN"; "$L" who "$LOCKER_KEY"'`)
	e.requireCode(t, 0)
	lines := strings.Split(e.out, "\n")
	require.Greater(t, len(lines), 6, e.out)
	assert.Equal(t, "a key", lines[0])
	first, err := strconv.ParseUint(lines[2], 10, 64)
	require.NoError(t, err)
	assert.Contains(t, e.out, "holder:    "+lines[1]+"\nlabel:     me, 5\n")

	e = shell(t, w.url, `"$L" run 'a key' -- sh -c 'echo "$LOCKER_TOKEN"'`)
	second, err := strconv.ParseUint(strings.TrimSpace(e.out), 10, 64)
	require.NoError(t, err)
	assert.Greater(t, second, first, "G3")
}

func TestRun_inputAndOutputAreTheCommands(t *testing.T) {
	w := newWorld(t)
	e := shell(t, w.url, `echo in | "$L" run k -- sh -c 'cat; echo err >&2'`)
	e.requireCode(t, 0)
	assert.Equal(t, "in\n", e.out)
	assert.Equal(t, "err\n", e.err)
}

func TestRun_waitsAndIsServed(t *testing.T) {
	w := newWorld(t)
	k := w.hold("k")
	p := w.start("-v", "run", "k", "--", "echo", "ran")
	p.awaitErr("waiting")
	require.NoError(t, k.Release(t.Context()))
	p.await("ran")
	p.requireExit(0)
}

// G1, with a counter that only survives if its writers exclude each other.
func TestRun_commandsExcludeEachOther(t *testing.T) {
	w := newWorld(t)
	counter := filepath.Join(t.TempDir(), "n")
	require.NoError(t, os.WriteFile(counter, []byte("0"), 0o600))
	shell(t, w.url, fmt.Sprintf(`
		turns() { for i in 1 2 3 4 5 6 7 8; do
			"$L" run k -- sh -c 'n=$(cat %[1]s); sleep 0.01; echo $((n+1)) > %[1]s' || exit 1
		done; }
		turns & turns & turns & wait`, counter)).requireCode(t, 0)
	n, err := os.ReadFile(counter)
	require.NoError(t, err)
	assert.Equal(t, "24", strings.TrimSpace(string(n)))
}

func TestRun_aSignalEndsTheWait(t *testing.T) {
	w := newWorld(t)
	k := w.hold("k")
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		p := w.start("-v", "run", "k", "--", "echo", "ran")
		p.awaitErr("waiting")
		p.signal(s)
		p.requireExit(128 + int(s))
		assert.Empty(t, p.rest(), "it ran")
	}
	require.NoError(t, k.Err())
	require.NoError(t, k.Release(t.Context()))
	w.requireFree("k") // W3: no waiter takes it now
}

func TestRun_signalsGoToTheCommand(t *testing.T) {
	w := newWorld(t)
	for name, s := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP,
		"QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		t.Run(name, func(t *testing.T) {
			p := w.start("run", "k", "--", "sh", "-c", `trap 'echo got; kill $!; exit 9' `+name+`; sleep 60 & echo ready; wait`)
			p.await("ready")
			p.signal(s)
			p.await("got")
			p.requireExit(9)
			w.requireFree("k")
		})
	}
	t.Run("one that is ignored", func(t *testing.T) { // nohup
		p := w.startIn(`trap '' HUP; exec "$L" run k -- sh -c 'echo ready; read x; echo "$x"'`)
		p.await("ready")
		p.signal(syscall.SIGHUP)
		_, err := io.WriteString(p.in, "alive\n")
		require.NoError(t, err)
		p.await("alive")
		p.requireExit(0)
	})
	t.Run("what it has started ends too", func(t *testing.T) {
		p := w.start("run", "k", "--", "sh", "-c", `sleep 60 & echo $!; wait; echo no`)
		pid := p.number()
		p.signal(syscall.SIGTERM)
		p.requireExit(128 + 15)
		requireGone(t, pid)
	})
}

// H3, and the way out for an operator.
func TestRun_aLostLockEndsTheCommand(t *testing.T) {
	w := newWorld(t)
	rdb := w.redis()
	lose := func(t *testing.T) { require.NoError(t, rdb.Del(t.Context(), "test:k").Err()) }

	t.Run("in order", func(t *testing.T) {
		p := w.start("run", "--ttl", "1s", "k", "--", "sh", "-c", `trap 'echo got TERM; kill $!; exit 0' TERM; sleep 60 & echo ready; wait`)
		p.await("ready")
		lose(t)
		p.await("got TERM")
		p.requireExit(75)
		assert.Contains(t, p.errText(), "lost \"k\"")
	})
	t.Run("by force, with what it has started", func(t *testing.T) {
		p := w.start("run", "--ttl", "1s", "--grace", "200ms", "k", "--", "sh", "-c", `trap '' TERM; sh -c 'echo $$; while :; do sleep 0.1; done' & wait; while :; do sleep 0.1; done`)
		pid := p.number()
		lose(t)
		p.requireExit(75)
		requireGone(t, pid)
	})
	t.Run("a slow one, whose lease ends meanwhile", func(t *testing.T) {
		p := w.start("run", "--ttl", "1500ms", "--grace", "750ms", "k", "--", "sh", "-c", `trap '' TERM; echo ready; while :; do sleep 0.05; done`)
		p.await("ready")
		lose(t)
		p.requireExit(75)
		assert.Contains(t, p.errText(), "lost \"k\"")
		assert.NotContains(t, p.errText(), "could not be renewed", "that is not the reason")
	})
	t.Run("a stopped one", func(t *testing.T) {
		p := w.start("run", "--ttl", "1s", "k", "--", "sh", "-c", `trap 'echo got TERM; exit 0' TERM; echo ready; kill -STOP $$; sleep 60`)
		p.await("ready")
		lose(t)
		p.await("got TERM")
		p.requireExit(75)
	})
	t.Run("one that has ended before it is known", func(t *testing.T) {
		p := w.start("run", "k", "--", "sh", "-c", `echo ready; read x`)
		p.await("ready")
		require.NoError(t, rdb.Set(t.Context(), "test:k", "another", 0).Err())
		require.NoError(t, p.in.Close())
		p.requireExit(75)
		assert.Equal(t, "another", w.holder("k").Holder, "R1: it is not ours to release")
		lose(t)
	})
}

// H2: the command is gone when the store may give the key to somebody else. It counts
// from before the command started, so that the bound is the strict one.
func TestRun_theCommandEndsWithinTheLeaseThatCannotBeRenewed(t *testing.T) {
	w := newWorld(t)
	const ttl = 3 * time.Second
	p := w.start("run", "--ttl", ttl.String(), "k", "--", "sh", "-c", `trap 'echo TERM' TERM; echo $$; while :; do sleep 0.05; done`)
	pid := p.number()
	paused := time.Now()
	require.NoError(t, w.srv.Pause())
	p.await("TERM")
	termed := time.Since(paused)
	requireGone(t, pid)
	gone := time.Since(paused)
	assert.Less(t, gone, ttl, "the lease was set before the pause")
	assert.Greater(t, gone-termed, ttl/6, "no grace")
	require.NoError(t, w.srv.Resume())
	p.requireExit(75)
	assert.Contains(t, p.errText(), "could not be renewed")
}

func TestRun_anOutageThatPassesIsSurvived(t *testing.T) {
	w := newWorld(t)
	p := w.start("-v", "run", "--ttl", "6s", "k", "--", "sh", "-c", `echo ready; read x; echo done`)
	p.await("ready")
	require.NoError(t, w.srv.Pause())
	p.awaitErr("renewal failed")
	require.NoError(t, w.srv.Resume())
	p.awaitErr("renewed")
	require.NoError(t, p.in.Close())
	p.await("done")
	p.requireExit(0)
	w.requireFree("k")
}

func TestRun_aStoreThatMayForgetIsWarnedOf(t *testing.T) {
	w := newWorld(t, "maxmemory 50mb", "maxmemory-policy allkeys-lru")
	p := w.start("run", "k", "--", "sh", "-c", "read x")
	p.awaitErr("locker: warning: " + w.srv.Addr() + ": it evicts keys")
	require.NoError(t, p.in.Close())
	p.requireExit(1)

	e := w.at("conformance", "-run", "^(H2/deadline|R3)")
	e.requireCode(t, 0)
	assert.Equal(t, 1, strings.Count(e.err, "warning"), "once is enough:\n%s", e.err)
}

// running is a command that was started.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs *lines
	end  chan struct{}
}

func (w *world) start(args ...string) *running {
	w.t.Helper()
	return w.run(exec.Command(program, args...))
}

func (w *world) startIn(script string) *running {
	w.t.Helper()
	return w.run(exec.Command("sh", "-c", script))
}

func (w *world) run(cmd *exec.Cmd) *running {
	w.t.Helper()
	p := &running{t: w.t, cmd: cmd, errs: newLines(), end: make(chan struct{})}
	cmd.Env = append(os.Environ(), "LOCKER_URL="+w.url, "L="+program)
	cmd.Stderr = p.errs
	cmd.WaitDelay = time.Second
	withoutTerminal(cmd)
	var err error
	p.in, err = cmd.StdinPipe()
	require.NoError(w.t, err)
	// A pipe of our own: Wait would close the other one while it is being read.
	r, wr, err := os.Pipe()
	require.NoError(w.t, err)
	cmd.Stdout = wr
	p.out = bufio.NewReader(r)
	require.NoError(w.t, r.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(w.t, cmd.Start())
	wr.Close()
	go func() {
		defer close(p.end)
		_ = cmd.Wait()
	}()
	w.t.Cleanup(func() {
		_ = killAll(cmd)
		<-p.end
		r.Close()
	})
	return p
}

// await reads the next line of standard output.
func (p *running) await(line string) {
	p.t.Helper()
	got, err := p.out.ReadString('\n')
	require.NoError(p.t, err, "%s\n%s", got, p.errText())
	require.Equal(p.t, line, strings.TrimSpace(got))
}

func (p *running) number() int {
	p.t.Helper()
	got, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	n, err := strconv.Atoi(strings.TrimSpace(got))
	require.NoError(p.t, err)
	return n
}

// rest is standard output up to its end, which comes with the end of all that have it.
func (p *running) rest() string {
	p.t.Helper()
	rest, err := io.ReadAll(p.out)
	require.NoError(p.t, err)
	return string(rest)
}

func (p *running) awaitErr(part string) {
	p.t.Helper()
	p.errs.await(p.t, part)
}

func (p *running) errText() string { return p.errs.String() }

func (p *running) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

func (p *running) requireExit(code int) {
	p.t.Helper()
	select {
	case <-p.end:
		require.True(p.t, p.cmd.ProcessState.Exited(), "%v", p.cmd.ProcessState)
		require.Equal(p.t, code, p.cmd.ProcessState.ExitCode(), p.errText())
	case <-time.After(patience):
		require.Fail(p.t, "it does not end", p.errText())
	}
}

// requireGone waits for the end of a process that is not our child.
func requireGone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return !alive(pid) }, patience, 5*time.Millisecond, "process %d runs on", pid)
}

// alive tells a live process from one that is gone, or only waits for its parent.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil && !os.IsNotExist(err)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
