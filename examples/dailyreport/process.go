package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/go-locker/locker"
)

// taskEnv makes this program an instance: the variable holds its task. The
// environment and not the arguments, which everybody on the machine can read: the URL
// may contain a password.
const taskEnv = "DAILYREPORT_TASK"

// inProcess starts an instance as a process of its own: this program again. What the
// instance has to tell is on its standard output, one JSON object per line.
func inProcess(ctx context.Context, t task, tell func(event)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), taskEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	doomed := false
	for lines := json.NewDecoder(stdout); ; {
		var e event
		if lines.Decode(&e) != nil {
			break // the process has ended, or says what it should not: its exit code tells
		}
		doomed = doomed || e.Kind == crashed
		tell(e)
	}
	err = cmd.Wait()
	if doomed {
		tell(event{t.Name, said, fmt.Sprintf("is gone: %v", err)})
		return nil
	}
	if err != nil {
		return fmt.Errorf("process of %s: %w", t.Name, err) // it has said why on standard error
	}
	return nil
}

// child is what the started process does. It returns the exit code.
func child(ctx context.Context, text string) int {
	var t task
	err := json.Unmarshal([]byte(text), &t)
	if err == nil {
		err = attendAlone(ctx, t)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// attendAlone is an instance's part in a round, in a process of its own.
func attendAlone(ctx context.Context, t task) error {
	ctx, cancel := context.WithTimeout(ctx, t.limit()) // also if nobody is left to end it
	defer cancel()
	l, db, err := connect(ctx, t.plan)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	in := &instance{
		task:  t,
		locks: l,
		marks: db,
		tell:  func(e event) { _ = lines.Encode(e) },
		die:   killSelf,
	}
	return errors.Join(in.attend(ctx), l.Close(ctx), db.Close())
}

// killSelf ends the process as kill -9 does: nothing is released, no deferred call runs.
func killSelf() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}

// connect opens the server's locks, and the marks, which are on the same one.
func connect(ctx context.Context, p plan) (locker.Locker, *inRedis, error) {
	l, err := locker.Open(ctx, p.URL)
	if err != nil {
		return nil, nil, err
	}
	db, err := openMarks(ctx, p)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close(ctx))
	}
	return l, db, nil
}

// check finds out before the first round whether the URL and its server will do.
func check(ctx context.Context, p plan) error {
	l, db, err := connect(ctx, p)
	if err != nil {
		return err
	}
	return errors.Join(l.Close(ctx), db.Close())
}
