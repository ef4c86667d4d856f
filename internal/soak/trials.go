package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/internal/testenv"
)

// faultsOfOneServer are the cases that measure: how long before the server frees a key
// its holder knows, and when a waiter has it.
const faultsOfOneServer = `^(H2/(black-hole|requests-lost|replies-lost|reset|server-frozen|stopped-process)|W1/killed-holder)$`

func (s *soak) trialsOnRedis(ctx context.Context) error {
	return withRedis(ctx, func(h conformance.Harness) error {
		return s.repeat(ctx, h, faultsOfOneServer)
	})
}

func (s *soak) trialsOnSentinel(ctx context.Context) error {
	return withSentinel(ctx, "", func(h conformance.Harness) error { return s.repeat(ctx, h, `^W4/server-killed$`) })
}

func (s *soak) trialsOnCluster(ctx context.Context) error {
	return withCluster(ctx, "", func(h conformance.Harness) error { return s.repeat(ctx, h, `^W4/server-killed$`) })
}

// repeat runs the cases again and again, and prints what they measured.
func (s *soak) repeat(ctx context.Context, h conformance.Harness, cases string) error {
	figures := make(map[string][]time.Duration)
	failed := 0
	for range s.trials {
		report := conformance.Check(ctx, h, regexp.MustCompile(cases), nil)
		for _, r := range report.Results {
			switch r.Status {
			case conformance.Error:
				return errors.New(r.Reason)
			case conformance.Pass:
			default:
				failed++
				fmt.Fprintln(s.out, "  ", r)
			}
			for _, f := range r.Figures {
				figures[f.Name] = append(figures[f.Name], f.Value)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		s.print(name, figures[name])
	}
	fmt.Fprintf(s.out, "   %d trials: %d cases failed\n", s.trials, failed)
	s.broken = s.broken || failed > 0
	return nil
}

// print tells what was measured.
func (s *soak) print(name string, values []time.Duration) {
	slices.Sort(values)
	fmt.Fprintf(s.out, "   %s: least %.1f ms, median %.1f ms, most %.1f ms of %d\n", name,
		ms(values[0]), ms(values[len(values)/2]), ms(values[len(values)-1]), len(values))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// trialsOfReplicas holds replication back, lets the server crash and promotes the
// replica. A lock that was confirmed is still held there; one that was not has been
// refused.
func (s *soak) trialsOfReplicas(ctx context.Context) error {
	for _, replicas := range []string{"?replicas=1", ""} {
		double, refused, kept := 0, 0, 0
		for range s.trials {
			d, r, k, err := promotion(ctx, replicas)
			if err != nil {
				return err
			}
			double, refused, kept = double+d, refused+r, kept+k
		}
		if replicas != "" {
			fmt.Fprintf(s.out, "   waiting for the replica: %d of %d grants refused, %d of %d held locks kept, %d double grants\n", refused, s.trials, kept, s.trials, double)
			s.broken = s.broken || double > 0
		} else {
			fmt.Fprintf(s.out, "   not waiting, for comparison: %d of %d grants refused, %d double grants\n", refused, s.trials, double)
		}
	}
	return nil
}

func promotion(ctx context.Context, query string) (double, refused, kept int, err error) {
	master, err := testenv.StartRedis(ctx, nil)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, master.Stop()) }()
	replica, err := testenv.StartReplica(ctx, master, nil)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, replica.Stop()) }()
	first, err := locker.Open(ctx, master.URL()+query)
	if err != nil {
		return 0, 0, 0, err
	}
	defer closeNow(ctx, first)
	second, err := locker.Open(ctx, replica.URL())
	if err != nil {
		return 0, 0, 0, err
	}
	defer closeNow(ctx, second)

	lease := locker.WithTTL(10 * time.Second)
	before, err := first.TryAcquire(ctx, "before", lease)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := errors.Join(replica.Pause(), master.DropReplicas(ctx)); err != nil {
		return 0, 0, 0, err
	}
	during, err := first.TryAcquire(ctx, "during", lease)
	if err != nil {
		refused++
	}
	if err := errors.Join(master.Kill(), replica.Resume(), replica.Promote(ctx)); err != nil {
		return 0, 0, 0, err
	}
	for key, k := range map[string]locker.Lock{"before": before, "during": during} {
		_, err := second.TryAcquire(ctx, key, lease)
		switch {
		case err == nil && k != nil && k.Err() == nil:
			double++
		case errors.Is(err, locker.ErrHeld) && key == "before":
			kept++
		case err != nil && !errors.Is(err, locker.ErrHeld):
			return 0, 0, 0, err
		}
	}
	return double, refused, kept, nil
}

// closeNow closes l without waiting for holders.
func closeNow(ctx context.Context, l locker.Locker) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = l.Close(ctx)
}
