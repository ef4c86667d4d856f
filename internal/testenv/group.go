package testenv

import (
	"errors"
	"sync"
)

// each does something with all servers at once.
func each[S any](servers []S, do func(i int, s S) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { errs[i] = do(i, s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// member is a server of a group, or nil if it was never started.
type member interface {
	comparable
	Addr() string
	Stop() error
}

// startAll starts n servers at once, all of them or none.
func startAll[S member](n int, start func(i int) (S, error)) ([]S, error) {
	servers := make([]S, n)
	err := each(servers, func(i int, _ S) (err error) {
		servers[i], err = start(i)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, stopAll(servers))
	}
	return servers, nil
}

// stopAll stops the servers, those that were never started excepted.
func stopAll[S member](servers []S) error {
	return each(servers, func(_ int, s S) error {
		var none S
		if s == none {
			return nil
		}
		return s.Stop()
	})
}

func addrs[S member](servers []S) []string {
	all := make([]string, len(servers))
	for i, s := range servers {
		all[i] = s.Addr()
	}
	return all
}
