package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-locker/locker/conformance"
)

func (s *soak) historiesOnRedis(ctx context.Context) error {
	return withRedis(ctx, func(h conformance.Harness) error { return s.histories(ctx, h, 100) })
}

// Behind Sentinel and in a cluster every grant, and every renewal, waits for all
// replicas: whoever is promoted knows the locks.

func (s *soak) historiesOnSentinel(ctx context.Context) error {
	return withSentinel(ctx, "?replicas=2", func(h conformance.Harness) error { return s.histories(ctx, h, 30) })
}

func (s *soak) historiesOnCluster(ctx context.Context) error {
	return withCluster(ctx, "&replicas=1", func(h conformance.Harness) error { return s.histories(ctx, h, 30) })
}

// histories plays so many of them, unless a flag says how many.
func (s *soak) histories(ctx context.Context, h conformance.Harness, seeds uint64) error {
	var sum conformance.HistoryResult
	faults, violations := 0, 0
	seeds = cmp.Or(s.seeds, seeds)
	for seed := s.first; seed < s.first+seeds; seed++ {
		r, err := conformance.History(ctx, h, conformance.HistoryConfig{Seed: seed, Length: s.length, KillServer: true})
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		fmt.Fprintln(s.out, "  ", r)
		sum.Grants += r.Grants
		sum.Losses += r.Losses
		sum.Writes += r.Writes
		sum.Fenced += r.Fenced
		sum.Stale += r.Stale
		violations += len(r.Violations)
		for _, n := range r.Faults {
			faults += n
		}
	}
	fmt.Fprintf(s.out, "   %d seeds: %d grants, %d lost, %d faults; %d writes through the fence, %d refused, %d overwritten without it; %d violations\n",
		seeds, sum.Grants, sum.Losses, faults, sum.Writes, sum.Fenced, sum.Stale, violations)
	s.broken = s.broken || violations > 0
	return nil
}

// controls have to be caught.
func (s *soak) controls(ctx context.Context) error {
	return withRedis(ctx, func(h conformance.Harness) error {
		for _, control := range controls {
			c := control.harness(h)
			caught := false
			for seed := s.first; seed < s.first+5 && !caught; seed++ {
				r, err := conformance.History(ctx, c, conformance.HistoryConfig{Seed: seed, Length: s.length})
				if err != nil {
					return fmt.Errorf("%s, seed %d: %w", control.scheme, seed, err)
				}
				if caught = len(r.Violations) > 0; caught {
					fmt.Fprintf(s.out, "   %s: caught by seed %d: %s\n", control.scheme, seed, r.Violations[0])
				}
			}
			if !caught {
				fmt.Fprintf(s.out, "   %s: NOT caught by 5 seeds\n", control.scheme)
				s.broken = true
			}
		}
		return nil
	})
}
