//go:build linux || darwin

package custombackend

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-locker/locker"
)

// directory is the store, as one process has it open.
type directory struct {
	path string
	boot string        // the machine's present run
	turn chan struct{} // full while a goroutine of this process is at the guard
}

// entry is the content of a lock file, a line for each field.
type entry struct {
	Ends   time.Duration // when the lease is over, on the machine's clock
	Boot   string        // the run of the machine in which Ends counts
	Token  uint64
	Holder string // the grant's owner, and its label, as others are shown them
	Key    string // for people: the file's name is a hash
}

func (e entry) owner() string {
	owner, _, _ := strings.Cut(e.Holder, " ")
	return owner
}

func openDirectory(ctx context.Context, path string) (*directory, error) {
	path, err := filepath.Abs(path) // the process may change its directory later
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, boot: boot, turn: make(chan struct{}, 1)}
	if err := d.exclusive(ctx, section.sweep); err != nil {
		return nil, err
	}
	return d, nil
}

// section is the time in which one process of the machine, and one goroutine of that,
// has the store to itself. It is a few file operations short.
type section struct {
	*directory
	guard *os.File
	now   time.Duration // on the machine's clock, read in the section
}

// exclusive runs do in a section. If it fails before, the store is as it was, which
// NoEffect says. The guard is a lock of the kernel, and not itself a file that exists
// or does not: who is killed with it does not leave it locked.
func (d *directory) exclusive(ctx context.Context, do func(section) error) error {
	if err := ctx.Err(); err != nil { // of two cases that are ready, a select takes any
		return locker.NoEffect(err)
	}
	// Goroutines stand in line here, so that only one of them asks the kernel.
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return locker.NoEffect(ctx.Err())
	}
	guard, err := os.OpenFile(filepath.Join(d.path, "guard"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			return locker.Permanent(err) // no rights, or no directory: waiting does not cure it
		}
		return locker.NoEffect(err)
	}
	defer guard.Close()
	if err := lock(ctx, guard); err != nil {
		return locker.NoEffect(err)
	}
	// Not left to Close: if this process is just starting another one, that has a
	// copy of the file for a moment, and the lock would be kept as long.
	defer func() { _ = unix.Flock(int(guard.Fd()), unix.LOCK_UN) }()
	now, err := machineTime()
	if err != nil {
		return locker.NoEffect(err)
	}
	return do(section{d, guard, now})
}

// lock locks the guard. It asks again and again, because a blocking flock would not
// end with ctx: another process may be stopped in its section.
func lock(ctx context.Context, guard *os.File) error {
	for {
		err := unix.Flock(int(guard.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-time.After(rand.N(time.Millisecond)): // longer than a section, and not in step
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// file is where a key is kept. A hash, because a key may be twice as long as a file's
// name, contain slashes, and differ from another one in case only, where file systems
// see no difference.
func (d *directory) file(key string) string {
	hash := sha256.Sum256([]byte(key))
	return filepath.Join(d.path, hex.EncodeToString(hash[:])+".lock")
}

// read returns what the store says about key. The zero entry is not live: nothing, or
// what a write left that was cut short.
func (s section) read(key string) (entry, error) { return readFile(s.file(key)) }

func readFile(path string) (entry, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, nil
	}
	fields := strings.SplitN(string(text), "\n", 5)
	if err != nil || len(fields) < 5 {
		return entry{}, err
	}
	ends, err1 := strconv.ParseInt(fields[0], 10, 64)
	token, err2 := strconv.ParseUint(fields[2], 10, 64)
	if err1 != nil || err2 != nil {
		return entry{}, nil //nolint:nilerr // cut short
	}
	return entry{time.Duration(ends), fields[1], token, fields[3], fields[4]}, nil
}

// live reports whether e is a lease that is not over. One from before a restart of the
// machine is, whatever its Ends: the clock began anew, and nobody who held it lives.
func (s section) live(e entry) bool { return e.Boot == s.boot && e.Ends > s.now }

// write writes a lock file for a key that is free. If a kill cuts it short, the key is
// still free. It does not wait for the disk: no lease outlives the machine's power.
func (s section) write(e entry) error {
	text := fmt.Appendf(nil, "%0*d\n%s\n%d\n%s\n%s", digits, e.Ends, e.Boot, e.Token, e.Holder, e.Key)
	return os.WriteFile(s.file(e.Key), text, 0o600)
}

// prolong sets the end of a lease: the file's first digits, and nothing else. If a kill
// cuts it short, it is the holder who was killed.
//
// A new file renamed over the old one would be whole at all times. But on ext4 that
// waits for the disk, and a thousand locks are not renewed as fast as they have to be.
func (s section) prolong(key string, ends time.Duration) error {
	f, err := os.OpenFile(s.file(key), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(fmt.Appendf(nil, "%0*d", digits, ends), 0)
	return err
}

func (s section) remove(key string) error { return os.Remove(s.file(key)) }

// mint returns the next token. One counter serves all keys: one per key could never be
// removed, since the next token of a key has to be larger than its last one. It is
// written before the lock file: a kill between them skips a token, and the other way
// round one would be given twice. That it is not behind the wall clock makes it
// rise when the counter was lost.
func (s section) mint() (uint64, error) {
	text := make([]byte, digits)
	n, _ := s.guard.ReadAt(text, 0)
	last, _ := strconv.ParseUint(string(text[:n]), 10, 64) // 0, if it is new or was cut short
	token := max(last+1, uint64(time.Now().UnixMicro()))
	_, err := s.guard.WriteAt(fmt.Appendf(nil, "%0*d", digits, token), 0)
	return token, err
}

// digits are those of the largest number: each one overwrites all of the last one.
const digits = 20

// sweep removes the files of leases that are over: holders that were killed leave them.
func (s section) sweep() error {
	files, err := os.ReadDir(s.path)
	if err != nil {
		return err
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".lock") {
			continue
		}
		path := filepath.Join(s.path, f.Name())
		e, err := readFile(path)
		if err == nil && !s.live(e) {
			err = os.Remove(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
