package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// postgresPrograms are the paths of the programs of one version.
type postgresPrograms struct{ postgres, initdb, basebackup string }

// findPostgres finds them where LOCKER_TEST_POSTGRES_BIN says, a directory; or else
// on PATH; or else where Debian has them, the newest.
func findPostgres() (postgresPrograms, error) {
	if dir := os.Getenv("LOCKER_TEST_POSTGRES_BIN"); dir != "" {
		programs, err := postgresIn(dir)
		if err != nil {
			err = fmt.Errorf("testenv: LOCKER_TEST_POSTGRES_BIN: %w", err)
		}
		return programs, err
	}
	exe, err := exec.LookPath("postgres")
	if err != nil {
		exe = newestPostgres()
	} else if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return postgresPrograms{}, err
	}
	if exe == "" {
		return postgresPrograms{}, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	programs, err := postgresIn(filepath.Dir(exe))
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return programs, err
}

// newestPostgres is Debian's postgres of the highest version, or "".
func newestPostgres() string {
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is right
	newest, highest := "", 0
	for _, path := range paths {
		version, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if version > highest {
			newest, highest = path, version
		}
	}
	return newest
}

func postgresIn(dir string) (postgresPrograms, error) {
	find := func(name string) (string, error) { return exec.LookPath(filepath.Join(dir, name)) }
	postgres, err1 := find("postgres")
	initdb, err2 := find("initdb")
	basebackup, err3 := find("pg_basebackup")
	return postgresPrograms{postgres, initdb, basebackup}, errors.Join(err1, err2, err3)
}
