//go:build linux || darwin

package custombackend_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/examples/custombackend"
)

func TestConformance(t *testing.T) {
	dir, child := os.LookupEnv("CUSTOMBACKEND_DIR") // the suite starts this test again
	if !child {
		dir = t.TempDir()
	}
	conformance.Run(t, conformance.Harness{
		Open: func(ctx context.Context) (locker.Locker, error) { return custombackend.New(ctx, dir, nil) },
		TTL:  500 * time.Millisecond,
		Names: func(context.Context) ([]string, error) {
			return filepath.Glob(filepath.Join(dir, "*.lock"))
		},
		Env: []string{"CUSTOMBACKEND_DIR=" + dir},
	})
}
