//go:build linux || darwin

package custombackend

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-locker/locker"
)

// What a backend need not have: without this file, and without CapExtend and
// CapInspect in Info, it is still one. locker.New refuses either without the other.
var (
	_ locker.Extender     = (*directory)(nil)
	_ locker.BatchRenewer = (*directory)(nil)
	_ locker.Inspector    = (*directory)(nil)
)

// Extend sets the lease, longer or shorter.
func (d *directory) Extend(ctx context.Context, g locker.Grant, ttl time.Duration) (locker.Lease, error) {
	return g.(*grant).set(ctx, ttl, true)
}

// RenewAll renews many grants in one section, which costs a fraction of one for each.
// Every grant gets an answer of its own: that one is lost is nothing to the others.
func (d *directory) RenewAll(ctx context.Context, renewals []locker.Renewal, answer func(int, locker.Lease, error)) {
	err := d.exclusive(ctx, func(s section) error {
		for i, r := range renewals {
			err := r.Grant.(*grant).setIn(s, r.TTL, false)
			answer(i, locker.Lease{TTL: r.TTL}, err)
		}
		return nil
	})
	if err != nil { // there was no section
		for i := range renewals {
			answer(i, locker.Lease{}, err)
		}
	}
}

// Inspect shows the holder of key.
func (d *directory) Inspect(ctx context.Context, key string) (shown locker.Holding, err error) {
	err = d.exclusive(ctx, func(s section) error {
		e, err := s.read(key)
		if err == nil && s.live(e) {
			shown = locker.Holding{Holder: e.Holder, Remaining: e.Ends - s.now, Token: e.Token}
		}
		return err
	})
	return shown, err
}

// ForceRelease takes key from holder, and from nobody who came after it.
func (d *directory) ForceRelease(ctx context.Context, key, holder string) (done bool, err error) {
	err = d.exclusive(ctx, func(s section) error {
		e, err := s.read(key)
		if err != nil || !s.live(e) || e.Holder != holder {
			return err
		}
		err = s.remove(key)
		done = err == nil
		return err
	})
	return done, err
}

// List shows what the directory has, some files at a time.
func (d *directory) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		files, err := dir.ReadDir(100)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		shown := make(map[string]locker.Holding)
		err = d.exclusive(ctx, func(s section) error {
			for _, f := range files {
				if filepath.Ext(f.Name()) != ".lock" {
					continue
				}
				e, err := readFile(filepath.Join(d.path, f.Name()))
				if err != nil {
					return err
				}
				if s.live(e) {
					shown[e.Key] = locker.Holding{Holder: e.Holder, Remaining: e.Ends - s.now, Token: e.Token}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for key, h := range shown { // outside of the section: yield may be slow, or use the Locker
			if !yield(key, h) {
				return nil
			}
		}
	}
}
