package testenv

import (
	"errors"
	"sync"
)

// each does something with all servers at once.
func each(servers []*Redis, do func(i int, r *Redis) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, r := range servers {
		all.Go(func() { errs[i] = do(i, r) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// startAll starts n servers at once, all of them or none.
func startAll(n int, start func() (*Redis, error)) ([]*Redis, error) {
	servers := make([]*Redis, n)
	err := each(servers, func(i int, _ *Redis) (err error) {
		servers[i], err = start()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, stopAll(servers))
	}
	return servers, nil
}

// stopAll stops the servers, those that were never started excepted.
func stopAll(servers []*Redis) error {
	return each(servers, func(_ int, r *Redis) error {
		if r == nil {
			return nil
		}
		return r.Stop()
	})
}

func addrs(servers []*Redis) []string {
	all := make([]string, len(servers))
	for i, r := range servers {
		all[i] = r.Addr()
	}
	return all
}
