package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
)

var etcdVersion = regexp.MustCompile(`go\.etcd\.io/etcd/server/v3 (v\S+)`)

// Etcdctl is the path of etcd's own client. The error matches ErrNotInstalled if there is none.
func Etcdctl() (string, error) { return findEtcd("etcdctl") }

// findEtcd finds one of etcd's programs where LOCKER_TEST_ETCD_BIN says, a directory; or else
// where make deps builds it.
func findEtcd(program string) (string, error) {
	if dir := os.Getenv("LOCKER_TEST_ETCD_BIN"); dir != "" {
		exe, err := exec.LookPath(filepath.Join(dir, program))
		if err != nil {
			err = fmt.Errorf("testenv: LOCKER_TEST_ETCD_BIN: %w", err)
		}
		return exe, err
	}
	_, source, _, _ := runtime.Caller(0)
	exe, err := builtEtcd(filepath.Dir(source), program)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return exe, err
}

// builtEtcd is the program in the version that the module in the folder etcd pins, if this
// package is in the directory.
func builtEtcd(dir, program string) (string, error) {
	pinned, err := os.ReadFile(filepath.Join(dir, "etcd", "go.mod"))
	if err != nil {
		return "", err // built on another machine, or with -trimpath
	}
	version := etcdVersion.FindSubmatch(pinned)
	if version == nil {
		return "", errors.New("no version of etcd in its go.mod")
	}
	return exec.LookPath(filepath.Join(dir, "..", "..", ".bin", program+"-"+string(version[1])))
}
