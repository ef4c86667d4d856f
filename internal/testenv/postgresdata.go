package testenv

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// copyData makes the data directory of a new server: a copy of the template, of which
// there is one for each version.
func (p *Postgres) copyData(ctx context.Context) error {
	data := filepath.Join(p.dir, dataName)
	template, err := p.template(ctx)
	if err != nil {
		return err
	}
	err = os.CopyFS(data, os.DirFS(template))
	// The cache may be another user's, with sudo.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		if err := p.initdb(ctx); err != nil {
			return err
		}
		keepTemplate(data, template)
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(data, 0o700); err != nil {
		return err
	}
	return p.as.own(data)
}

// initdbArgs are all but those that name a file. Small segments make small copies.
var initdbArgs = []string{
	"--username", superuser, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--wal-segsize", "1",
	"--no-sync", // a copy is not synced either
}

func (p *Postgres) initdb(ctx context.Context) error {
	const passwordName = "password"
	file := filepath.Join(p.dir, passwordName)
	if err := os.WriteFile(file, []byte(superuser), 0o600); err != nil {
		return err
	}
	if err := p.as.own(file); err != nil {
		return err
	}
	return p.runToEnd(ctx, append([]string{p.programs.initdb, "-D", dataName, "--pwfile", passwordName}, initdbArgs...)...)
}

// template is the directory that the data is to be copied from, there or not.
func (p *Postgres) template(ctx context.Context) (string, error) {
	version, err := exec.CommandContext(ctx, p.programs.postgres, "--version").Output()
	if err != nil {
		return "", errors.Join(context.Cause(ctx), err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(p.dir, "none"), nil //nolint:nilerr // a user without a home does without
	}
	of := sha256.Sum256([]byte(string(version) + strings.Join(initdbArgs, " ")))
	return filepath.Join(cache, "locker-testenv", fmt.Sprintf("postgres-%x", of[:8])), nil
}

// keepTemplate makes data, of a server that has never run, the template. Whether that
// succeeds matters only to the time that later starts take. Of several at once the
// first one wins, and none is ever seen half made.
func keepTemplate(data, template string) {
	if err := os.MkdirAll(filepath.Dir(template), 0o700); err != nil {
		return
	}
	copied, err := os.MkdirTemp(filepath.Dir(template), "new-")
	if err != nil {
		return
	}
	if os.CopyFS(copied, os.DirFS(data)) != nil || os.Rename(copied, template) != nil {
		_ = os.RemoveAll(copied)
	}
}

// runToEnd runs a program in the server's directory, until it or ctx ends. Of what
// it started itself nothing is left either.
func (p *Postgres) runToEnd(ctx context.Context, command ...string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	name := filepath.Base(command[0])
	proc, err := p.spawn(command, true)
	if err != nil {
		return err
	}
	select {
	case <-proc.exited:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("testenv: %s: %w; it said:\n%s", name, context.Cause(ctx), p.log()), proc.kill())
	}
	if !proc.cmd.ProcessState.Success() {
		return fmt.Errorf("testenv: %s: %v; it said:\n%s", name, proc.cmd.ProcessState, p.log())
	}
	return nil
}
