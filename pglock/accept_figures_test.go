package pglock

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	osexec "os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// The tests in accept_*_test.go measure what the package promises, and print it.

// figures are what the trials of a test have measured. They are safe for concurrent use.
type figures struct {
	mu   sync.Mutex
	took []time.Duration
}

func (f *figures) add(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = append(f.took, d)
}

// print prints them beside the promise. A machine that does much else keeps some of them
// waiting: a third has to be within the promise, and each within the slack, which is far
// from what it would be if the mechanism failed.
func (f *figures) print(t *testing.T, what string, promise, slack time.Duration) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NotEmpty(t, f.took, what)
	slices.Sort(f.took)
	within := 0
	for _, d := range f.took {
		if d <= promise {
			within++
		}
	}
	least, most := f.took[0], f.took[len(f.took)-1]
	t.Logf("%s after %.1f..%.1f ms: %d of %d within %v", what, millis(least), millis(most), within, len(f.took), promise)
	require.LessOrEqual(t, most, slack, what)
	require.GreaterOrEqual(t, 3*within, len(f.took), "%s: too few within %v: %v", what, promise, f.took)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// openOn opens a Locker by URL, and makes what it needs. The test's end closes it.
func openOn(t testing.TB, server, mode string, cfg *locker.OpenConfig) locker.Locker {
	t.Helper()
	l, err := locker.OpenWith(t.Context(), withMode(server, mode), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { closeNow(t, l) })
	return l
}

// withMode is a URL for locker.Open. The mode may have parameters behind it.
func withMode(server, mode string) string {
	return server + "&locker_create=true&locker_mode=" + mode
}

// blockedMode is advisory locks with waiters that wait on the server.
const blockedMode = "advisory&locker_blocked_waiters=true"

// nameOfMode is a mode without the signs that a test's name lacks.
func nameOfMode(mode string) string {
	if mode == blockedMode {
		return "blocked waiters"
	}
	return mode
}

// closeNow does not wait for holders.
func closeNow(t testing.TB, l locker.Locker) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.Close(ctx)
}

func acquire(t testing.TB, l locker.Locker, key string, opts ...locker.Option) locker.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	k, err := l.Acquire(ctx, key, opts...)
	require.NoError(t, err)
	return k
}

// waiting is an acquire under way.
type waiting chan arrival

// arrival is what it ends with, and when.
type arrival struct {
	k  locker.Lock
	at time.Time
}

// waitFor begins to wait for a key.
func waitFor(t testing.TB, l locker.Locker, key string) waiting {
	t.Helper()
	w := make(waiting, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	go func() {
		if k, err := l.Acquire(ctx, key); err == nil {
			w <- arrival{k, time.Now()}
		}
	}()
	return w
}

func (w waiting) lock(t testing.TB) (locker.Lock, time.Time) {
	t.Helper()
	select {
	case got := <-w:
		return got.k, got.at
	case <-time.After(30 * time.Second):
		t.Fatal("still waiting")
		return nil, time.Time{}
	}
}

// holderPID is the pid of the session that holds a key.
func holderPID(t testing.TB, l locker.Locker, key string) int {
	t.Helper()
	h, err := l.(locker.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	pid, _, ok := parseHolder(h.Holder)
	require.True(t, ok, h.Holder)
	return pid
}

// awaitMarks waits until so many listen sessions have marked a number as waited for.
func awaitMarks(t testing.TB, pool *pgxpool.Pool, number int64, waiters int) {
	t.Helper()
	class, object := waitMark(number)
	require.Eventually(t, func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND classid = ($1::bigint & 4294967295)::oid AND objid = ($2::bigint & 4294967295)::oid`, class, object) >= waiters
	}, soon, time.Millisecond)
}

// awaitBlocked waits until so many sessions of the database wait for a lock on the server.
func awaitBlocked(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	}, soon, time.Millisecond)
}

// traffic is what a Locker's connections write.
type traffic struct {
	from func(ctx context.Context, network, address string) (net.Conn, error) // nil: this machine

	mu    sync.Mutex
	conns []*countedConn
}

type countedConn struct {
	net.Conn
	statements atomic.Int64
}

func (n *traffic) dial(ctx context.Context, network, address string) (net.Conn, error) {
	from := n.from
	if from == nil {
		from = new(net.Dialer).DialContext
	}
	conn, err := from(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &countedConn{Conn: conn}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, c)
	return c, nil
}

// Write counts the statements in what is written: messages of the type Execute or Query,
// each of which is written whole.
func (c *countedConn) Write(b []byte) (int, error) {
	for rest := b; len(rest) >= 5 && rest[0] != 0; {
		if rest[0] == 'E' || rest[0] == 'Q' {
			c.statements.Add(1)
		}
		rest = rest[min(len(rest), 1+int(binary.BigEndian.Uint32(rest[1:5]))):]
	}
	return c.Conn.Write(b)
}

// sent is the number of statements, on all connections, ended ones too.
func (n *traffic) sent() (statements int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		statements += c.statements.Load()
	}
	return statements
}

// child is another process, which holds a key.
type child struct {
	cmd   *osexec.Cmd
	token uint64
}

// What a child is told: by which URL, and which keys to hold and to wait for.
const childEnv = "LOCKER_TEST_PGLOCK_CHILD"

// serveChild is what other processes of the tests do: they hold a key, and perhaps wait for
// another one, until their standard input ends. It reports whether this process is one.
func serveChild() bool {
	told, is := os.LookupEnv(childEnv)
	if !is {
		return false
	}
	if err := hold(context.Background(), told); err != nil {
		fmt.Println(err)
	}
	return true
}

func hold(ctx context.Context, told string) error {
	v, err := url.ParseQuery(told)
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(v.Get("ttl"))
	if err != nil {
		return err
	}
	l, err := locker.OpenWith(ctx, v.Get("url"), &locker.OpenConfig{Config: locker.Config{TTL: ttl}})
	if err != nil {
		return err
	}
	k, err := l.TryAcquire(ctx, v.Get("hold"))
	if err != nil {
		return err
	}
	if key := v.Get("wait"); key != "" {
		go l.Acquire(ctx, key) //nolint:errcheck // it never gets it
	}
	fmt.Printf("held %d\n", k.Token())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

var childHolds = regexp.MustCompile(`^held (\d+)$`)

// startChild starts a process that holds a key by a URL for Open, and waits for another
// one if wait is not empty. It returns when the key is held.
func startChild(t testing.TB, server string, ttl time.Duration, hold, wait string) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: osexec.Command(exe)}
	told := url.Values{"url": {server}, "ttl": {ttl.String()}, "hold": {hold}, "wait": {wait}}
	c.cmd.Env = append(os.Environ(), childEnv+"="+told.Encode())
	_, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); said = append(said, lines.Text()) {
		if m := childHolds.FindStringSubmatch(lines.Text()); m != nil {
			c.token, err = strconv.ParseUint(m[1], 10, 64)
			require.NoError(t, err)
			return c
		}
	}
	t.Fatal("the child ended:", strings.Join(said, "\n"))
	return nil
}

// stop stops the process in its tracks, and returns when that is so.
func (c *child) stop() error {
	return osexec.Command("kill", "-STOP", strconv.Itoa(c.cmd.Process.Pid)).Run()
}
