package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRun_killedItTakesTheCommandWithIt(t *testing.T) {
	w := newWorld(t)
	const ttl = 2 * time.Second
	p := w.start("run", "--ttl", ttl.String(), "k", "--", "sh", "-c", `trap '' TERM INT HUP; echo $$; while :; do sleep 0.05; done`)
	pid := p.number()
	p.signal(syscall.SIGKILL)
	<-p.end
	requireGone(t, pid)
	h := w.holder("k")
	assert.NotEmpty(t, h.Holder, "nobody was left to release it")
	assert.LessOrEqual(t, h.Remaining, ttl)
	e := w.at("run", "-w", "10s", "k", "--", "true")
	e.requireCode(t, 0)
	assert.Less(t, e.took, ttl+5*time.Second)
}

// A message that nobody reads any more is no reason to leave the command alone.
func TestRun_outlivesTheReaderOfItsMessages(t *testing.T) {
	w := newWorld(t)
	r, wr, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(program, "-v", "--url", w.url, "run", "--ttl", "300ms", "k", "--", "sh", "-c", "sleep 1; exit 3")
	cmd.Stderr = wr
	require.NoError(t, cmd.Start())
	wr.Close()
	r.Close()
	_ = cmd.Wait()
	assert.Equal(t, 3, cmd.ProcessState.ExitCode(), "%v", cmd.ProcessState)
	w.requireFree("k")
}

// In a terminal Ctrl-C reaches both of us, so it is not passed on. This command has left
// the group that the terminal sends it to, and sees what is passed on.
func TestRun_aTerminalsInterruptIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	p := w.startInTerminal("run", "k", "--", "env", asCounter+"=1", os.Args[0])
	p.screen.await(t, "ready")
	p.key(3) // Ctrl-C
	p.screen.await(t, "^C")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM)) // is passed on behind it
	p.screen.await(t, "0 interrupts")
	p.wait()
	w.requireFree("k")
}

// asCounter, set in the environment, makes this test binary a program that counts the
// interrupts it gets until SIGTERM, in a process group of its own.
const asCounter = "LOCKER_TEST_COUNTER"

func init() {
	if os.Getenv(asCounter) == "" {
		return
	}
	if err := syscall.Setpgid(0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	c := make(chan os.Signal, 10)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("ready")
	n := 0
	for s := range c {
		if s == syscall.SIGTERM {
			break
		}
		n++
	}
	fmt.Println(n, "interrupts")
	os.Exit(0)
}

// A shell ends its script at Ctrl-C only if what it waits for died of it.
func TestRun_diesOfTheInterruptThatEndedTheCommand(t *testing.T) {
	w := newWorld(t)
	p := w.startInTerminal("run", "k", "--", "sh", "-c", `trap 'trap - INT; kill -INT $$' INT; echo ready; while :; do sleep 0.05; done`)
	p.screen.await(t, "ready")
	p.key(3)
	p.wait()
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	assert.True(t, status.Signaled() && status.Signal() == syscall.SIGINT, "%v", p.cmd.ProcessState)
	w.requireFree("k")
}

func TestRun_theCommandReadsFromTheTerminal(t *testing.T) {
	w := newWorld(t)
	p := w.startInTerminal("run", "k", "--", "sh", "-c", `echo ready; read x; echo "read <$x>"`)
	p.screen.await(t, "ready")
	_, err := p.terminal.WriteString("typed\n")
	require.NoError(t, err)
	p.screen.await(t, "read <typed>")
	p.wait()
	assert.Equal(t, 0, p.cmd.ProcessState.ExitCode(), "%v", p.cmd.ProcessState)
}

// inTerminal is a command that runs in a terminal of its own.
type inTerminal struct {
	t        *testing.T
	cmd      *exec.Cmd
	terminal *os.File
	screen   *lines
	ended    chan struct{}
}

func (w *world) startInTerminal(args ...string) *inTerminal {
	t := w.t
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { master.Close() })
	raw, err := master.SyscallConn()
	require.NoError(t, err)
	var number int
	require.NoError(t, raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}))
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer slave.Close()

	p := &inTerminal{t: t, terminal: master, screen: newLines(), ended: make(chan struct{})}
	p.cmd = exec.Command(program, append([]string{"--url", w.url}, args...)...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, p.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 1024)
		for {
			n, err := master.Read(buf)
			_, _ = p.screen.Write(buf[:n])
			if err != nil {
				return // EIO: nobody has the other end
			}
		}
	}()
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		<-read
	})
	return p
}

func (p *inTerminal) key(c byte) {
	p.t.Helper()
	_, err := p.terminal.Write([]byte{c})
	require.NoError(p.t, err)
}

func (p *inTerminal) wait() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.Fail(p.t, "it does not end", p.screen.String())
	}
}
