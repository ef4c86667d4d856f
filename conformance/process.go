package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

// process is how to start this executable as a child.
type process struct {
	args []string
	run  string // the value of childEnv
}

// testProcess starts a test binary so that it reaches the test of that name.
func testProcess(test string) process {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return process{args: []string{"-test.run=" + strings.Join(parts, "/"), "-test.count=1"}, run: test}
}

// programProcess starts a program as this one was started.
func programProcess() process {
	return process{args: os.Args[1:], run: programRun}
}

// child is another process with a Locker, seen from here.
type child struct {
	t      *trial
	cmd    *exec.Cmd
	in     io.WriteCloser
	exited chan struct{}
	stderr strings.Builder // complete after exited

	mu      sync.Mutex
	calls   int
	answers map[int]chan answer
	note    func(note) *ruling // of "play"
	killed  bool
}

// child starts a process and waits until its Locker is open.
func (t *trial) child() *child {
	exe, err := os.Executable()
	t.mustWork("starting a process", err)
	p := t.suite.process
	c := &child{t: t, exited: make(chan struct{}), answers: make(map[int]chan answer)}
	c.cmd = exec.Command(exe, p.args...)
	c.cmd.Env = append(append(os.Environ(), t.suite.h.Env...), childEnv+"="+p.run)
	c.cmd.Stderr = &c.stderr
	c.in, err = c.cmd.StdinPipe()
	t.mustWork("starting a process", err)
	out, err := c.cmd.StdoutPipe()
	t.mustWork("starting a process", err)
	t.mustWork("starting a process", c.cmd.Start())
	t.mu.Lock()
	t.children = append(t.children, c)
	t.mu.Unlock()

	ready := c.expect(0)
	t.running.Go(func() {
		defer close(c.exited)
		c.read(out)
		_ = c.cmd.Wait()
	})
	c.await(ready)
	return c
}

// read hands out the answers until the process closes its standard output.
func (c *child) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		_, text, ok := strings.Cut(lines.Text(), mark)
		var a answer
		if !ok || json.Unmarshal([]byte(text), &a) != nil {
			continue // a print of go test, or of the program
		}
		c.mu.Lock()
		if a.Note != nil {
			take := c.note
			c.mu.Unlock()
			if reply := take(*a.Note); reply != nil {
				_ = c.write(request{Op: "rule", Ruling: reply}) // it fails when the process is gone
			}
			continue
		}
		ch := c.answers[a.ID]
		delete(c.answers, a.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	}
}

func (c *child) expect(id int) <-chan answer {
	ch := make(chan answer, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[id] = ch
	return ch
}

// await returns the answer, which has to be good.
func (c *child) await(ch <-chan answer) answer {
	select {
	case a := <-ch:
		c.t.must(a.Err == "", "a good answer of the other process", "%s", a.Err)
		return a
	case <-c.exited:
		c.t.mustWork("the other process", fmt.Errorf("it ended: %v\n%s", c.cmd.ProcessState, &c.stderr))
	case <-c.t.ctx.Done():
		c.t.must(false, "an answer of the other process", "none: %v", context.Cause(c.t.ctx))
	}
	panic("unreachable")
}

// send sends a request and returns where its answer will come.
func (c *child) send(r request) (id int, ch <-chan answer) {
	c.mu.Lock()
	c.calls++
	r.ID = c.calls
	c.mu.Unlock()
	ch = c.expect(r.ID)
	c.t.mustWork("the other process", c.write(r))
	return r.ID, ch
}

func (c *child) write(r request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.in.Write(append(line, '\n'))
	return err
}

// play has the process take part in a history. It ends when its clients do, or when
// it is killed.
func (c *child) play(r role, take func(note) *ruling) (done <-chan struct{}) {
	c.mu.Lock()
	c.note = take
	c.mu.Unlock()
	_, ch := c.send(request{Op: "play", Role: &r})
	return c.t.start(func() {
		select {
		case a := <-ch:
			c.t.must(a.Err == "", "a good end of the other process's part", "%s", a.Err)
		case <-c.exited:
			c.mu.Lock()
			killed := c.killed
			c.mu.Unlock()
			if !killed {
				c.t.mustWork("the other process", fmt.Errorf("it ended: %v\n%s", c.cmd.ProcessState, &c.stderr))
			}
		}
	})
}

// disturb does something to the network of the process, and returns when it is done.
func (c *child) disturb(d disturbance) {
	_, ch := c.send(request{Op: "disturb", Disturbance: &d})
	c.await(ch)
}

// acquire lets the process acquire key, and waits until it has.
func (c *child) acquire(key string, ttl time.Duration) *remoteLock {
	id, ch := c.send(request{Op: "acquire", Key: key, TTL: ttl})
	a := c.await(ch)
	return &remoteLock{c: c, id: id, token: a.Token, ttl: a.TTL}
}

// queue lets the process acquire key, and does not wait.
func (c *child) queue(key string, ttl time.Duration) {
	c.send(request{Op: "acquire", Key: key, TTL: ttl})
}

// stop halts the process (SIGSTOP) until resume (SIGCONT).
func (c *child) stop()   { c.t.mustWork("SIGSTOP", stopProcess(c.cmd.Process)) }
func (c *child) resume() { c.t.mustWork("SIGCONT", resumeProcess(c.cmd.Process)) }

// kill ends the process as a crash does, and waits until it is gone.
func (c *child) kill() {
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
	<-c.exited
}

// end lets the process come to its end; one that does not is killed.
func (c *child) end() {
	_ = c.in.Close()
	_ = resumeProcess(c.cmd.Process) // a case that failed may have left it stopped
	if !within(c.exited, prompt) {
		c.kill()
	}
}

// remoteLock is a lock that a child holds. The child renews it; here it counts
// as held until its release is asked for.
type remoteLock struct {
	c     *child
	id    int
	token uint64
	ttl   time.Duration
}

func (k *remoteLock) Token() uint64 { return k.token }
func (k *remoteLock) Err() error    { return nil }

// release gives the lock back, which was held until then.
func (k *remoteLock) release() {
	a := k.tryRelease()
	k.c.t.must(a.Text == "", "nil: the lock was held until its release", "Release: %s", a.Text)
}

func (k *remoteLock) tryRelease() answer {
	_, ch := k.c.send(request{Op: "release", Lock: k.id})
	return k.c.await(ch)
}

// watch has the process ask for the lock's Err from now on. The answer comes when
// it is over.
func (k *remoteLock) watch() <-chan answer {
	_, ch := k.c.send(request{Op: "watch", Lock: k.id})
	return ch
}
