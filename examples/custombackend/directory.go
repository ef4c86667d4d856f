//go:build linux || darwin

package custombackend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

// entry is the content of a lock file.
type entry struct {
	Key    string // for people: the file's name is a hash
	Owner  string // whose it is; the grant's identity
	Holder string // the owner and his label, as others are shown them
	Token  uint64
	Boot   string        // the run of the machine in which Ends counts
	Ends   time.Duration // when the lease is over, on the machine's clock
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
	return d, d.exclusive(ctx, section.sweep)
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

// read returns what the store says about key; the zero entry, which is not live, if
// nothing.
func (s section) read(key string) (entry, error) { return readFile(s.file(key)) }

func readFile(path string) (e entry, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, nil
	}
	if err != nil {
		return entry{}, err
	}
	if json.Unmarshal(text, &e) != nil {
		return entry{}, nil //nolint:nilerr // a write was cut short: see there
	}
	return e, nil
}

// live reports whether e is a lease that is not over. One from before a restart of the
// machine is, whatever its Ends: the clock began anew, and nobody who held it lives.
func (s section) live(e entry) bool { return e.Boot == s.boot && e.Ends > s.now }

func (s section) held(e entry) error {
	return &locker.HeldError{Key: e.Key, Holder: e.Holder, Remaining: e.Ends - s.now}
}

// write writes e over what stood there, in one call and always of one size. If a kill
// cuts it short all the same, what cannot be read is nobody's: only the process whose
// lock it is, or who is taking a free key, writes here, and it is dead. It does not
// wait for the disk: no lease outlives the machine's power.
//
// A rename over the old file could not be cut short. But ext4 then sends the file to
// the disk each time, and a thousand locks are not renewed as fast as they have to be.
func (s section) write(e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.file(e.Key), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := bytes.Repeat([]byte(" "), blockSize) // to JSON, spaces behind it are nothing
	copy(block, text)
	_, err = f.WriteAt(block, 0)
	return err
}

// blockSize is what the longest key and label need, every byte of them escaped.
const blockSize = 4096

func (s section) remove(key string) error { return os.Remove(s.file(key)) }

// mint returns the next token. One counter serves all keys: one per key could never be
// removed, since the next token of a key has to be larger than its last one. It is
// written before the lock file: a kill between them skips a token, and the other way
// round one would be given twice. That it is not behind the wall clock makes it
// rise when the counter was lost.
func (s section) mint() (uint64, error) {
	text := make([]byte, tokenDigits)
	n, _ := s.guard.ReadAt(text, 0)
	last, _ := strconv.ParseUint(string(text[:n]), 10, 64) // 0, if it is new or was cut short
	token := max(last+1, uint64(time.Now().UnixMicro()))
	_, err := s.guard.WriteAt(fmt.Appendf(nil, "%0*d", tokenDigits, token), 0)
	return token, err
}

const tokenDigits = 20 // of the largest uint64: each token overwrites all of the last one

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
