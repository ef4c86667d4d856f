package locker_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who imports a backend compiles that backend's client and no other, and nothing
// that is there for tests or for the command line.
func TestPackages_bringOnlyWhatTheyNeed(t *testing.T) {
	const module = "github.com/go-locker/locker"
	tests := []string{"testing", "github.com/stretchr", "go.uber.org/goleak", module + "/conformance", module + "/internal/testenv"}
	commands := []string{"github.com/urfave", module + "/cmd"}
	clients := []string{"github.com/redis", "github.com/jackc", "go.etcd.io"}
	for _, tc := range []struct {
		pkg  string
		mine string // the client that the package is for
	}{
		{".", ""},
		{"./memlock", ""},
		{"./redislock", "github.com/redis"},
		{"./pglock", "github.com/jackc"},
		{"./etcdlock", "go.etcd.io"},
	} {
		t.Run(tc.pkg, func(t *testing.T) {
			cmd := exec.Command("go", "list", "-deps", tc.pkg)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			require.NoError(t, err)
			deps := strings.Fields(string(out))
			require.Contains(t, deps, module, "the list is not one of dependencies")
			for _, unwanted := range append(slices.Concat(clients, tests, commands), "google.golang.org") {
				if unwanted == tc.mine || unwanted == "google.golang.org" && tc.mine == "go.etcd.io" { // its transport
					continue
				}
				for _, dep := range deps {
					if dep == unwanted || strings.HasPrefix(dep, unwanted+"/") {
						t.Errorf("%s brings %s", tc.pkg, dep)
					}
				}
			}
		})
	}
}
