package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-locker/locker"
)

// instance is one copy of the application.
type instance struct {
	task
	locks locker.Locker
	marks marks
	tell  func(event)
	die   func() // how this instance crashes
}

// attend is an instance's part in a round. It looks at the report until it knows that
// it is done, or ctx ends.
func (in *instance) attend(ctx context.Context) error {
	if err := pause(ctx, time.Until(in.Start.Add(in.Delay))); err != nil {
		return err
	}
	holder := ""
	for {
		_, err := locker.TryDo(ctx, in.locks, in.lockKey(), in.report,
			locker.WithLabel(in.Name),
			locker.WithTTL(in.TTL),
			locker.WithMaxHold(in.Job+in.TTL/2)) // a job that hangs does not stop the others for ever

		// "Held" is not "done": the holder may crash. So who is told it comes back
		// when the holder's lease would be over, as a schedule would that ticks more
		// often than the report is due.
		again := in.TTL
		held, isHeld := errors.AsType[*locker.HeldError](err)
		lost, isLost := errors.AsType[*locker.LostError](err)
		stale, isStale := errors.AsType[*staleError](err)
		switch {
		case err == nil, errors.Is(err, errCrashed):
			return nil
		case isHeld:
			again = cmp.Or(held.Remaining, in.TTL)
			if held.Holder != holder {
				holder = held.Holder
				in.say(said, "skips: %s is at it, lease ends in %v", nameOf(holder), held.Remaining.Round(time.Millisecond))
			}
		case isStale:
			in.say(refused, "is refused: %v", stale)
		case isLost:
			in.say(said, "stops: %v", lost)
		default:
			return fmt.Errorf("%s: %w", in.Name, err) // an outage, say; it is never reported as "held"
		}
		again += rand.N(in.TTL / 5) // not all at the same time
		if err := pause(ctx, again); err != nil {
			return err
		}
	}
}

// report is the job, under lock k. ctx ends if k is lost.
func (in *instance) report(ctx context.Context, k locker.Lock) error {
	// The lock says that nobody else is at it now. Whether it has been done already,
	// only the mark can say.
	before, err := begin(ctx, in.marks, in.Day, k.Token())
	switch {
	case err != nil:
		return err
	case before.By != "":
		in.say(said, "finds the lock free, but the mark set: report %s done by %s with token %d", in.Day, before.By, before.Token)
		return nil
	case before.Token != 0:
		in.say(tookOver, "takes over with token %d what was begun with token %d and not finished", k.Token(), before.Token)
	default:
		in.say(said, "has the lock and begins, with token %d", k.Token())
	}

	if err := pause(ctx, in.Job); err != nil { // the work; it stops when the lock is lost
		return err
	}
	if before.Token == 0 {
		if err := in.befall(ctx, k.Token()); err != nil {
			return err
		}
	}

	// In between, this process may have been paused past its lease, and ctx is of no
	// help to a write that is on its way already. Its token is.
	if err := finish(context.WithoutCancel(ctx), in.marks, in.Day, k.Token(), in.Name); err != nil {
		return err
	}
	in.say(wrote, "has written the report: the mark is set")
	return nil
}

// lockKey is one for all days: two reports are never written at the same time.
func (in *instance) lockKey() string { return "daily-report:" + in.Run }

// nameOf finds the label in what a store shows of a holder: the owner id, a space and
// the label.
func nameOf(holder string) string {
	_, label, _ := strings.Cut(holder, " ")
	return cmp.Or(label, holder)
}

// pause waits for d. If ctx ends before, the error is its cause: ErrLost under a lock.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// event is what an instance tells.
type event struct {
	Name string // of the instance
	Kind kind
	Text string
}

// kind is what is counted.
type kind string

const (
	said     kind = "said" // nothing that counts
	wrote    kind = "wrote"
	tookOver kind = "took over"
	refused  kind = "refused"
	crashed  kind = "crashed"
)

func (in *instance) say(k kind, format string, args ...any) {
	in.tell(event{Name: in.Name, Kind: k, Text: fmt.Sprintf(format, args...)})
}
