package locker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/memlock"
)

func Example() {
	ctx := context.Background()
	// mem:// excludes within one process; redis://localhost:6379/0, with redislock imported, among all.
	l, err := locker.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)

	err = locker.Do(ctx, l, "daily report", func(ctx context.Context, k locker.Lock) error {
		fmt.Println("nobody else writes it now") // until ctx ends: the lock would be lost then
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: nobody else writes it now
}

// One attempt, without waiting. If the key is held, the error says by whom.
func ExampleLocker_tryAcquire() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)
	k, err := l.TryAcquire(ctx, "daily report", locker.WithLabel("instance-3"))
	fmt.Println(err)

	_, err = l.TryAcquire(ctx, "daily report")
	if held, ok := errors.AsType[*locker.HeldError](err); ok {
		_, label, _ := strings.Cut(held.Holder, " ") // the owner id stands in front of it
		fmt.Println("held by", label)
		fmt.Println("may be free in 30s:", held.Remaining <= locker.DefaultTTL)
	}
	fmt.Println(k.Release(ctx))
	// Output:
	// <nil>
	// held by instance-3
	// may be free in 30s: true
	// <nil>
}

// Ten goroutines take turns. They could as well be ten processes.
func ExampleDo() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)

	balance := 0
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			err := locker.Do(ctx, l, "account 7", func(context.Context, locker.Lock) error {
				balance += 5
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(balance)
	// Output: 50
}

// A job that is left out while somebody else is at it.
func ExampleTryDo() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)

	job := func(ctx context.Context, _ locker.Lock) error {
		ran, err := locker.TryDo(ctx, l, "clean-up", func(context.Context, locker.Lock) error {
			fmt.Println("two at the same time")
			return nil
		})
		fmt.Printf("second: ran=%t held=%t\n", ran, errors.Is(err, locker.ErrHeld))
		return nil
	}
	ran, err := locker.TryDo(ctx, l, "clean-up", job)
	fmt.Printf("first: ran=%t err=%v\n", ran, err)
	// Output:
	// second: ran=false held=true
	// first: ran=true err=<nil>
}

// Work that outlives one function ends with the lock, and its context says why.
func ExampleWithLock() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)
	k, err := l.Acquire(ctx, "shard 12")
	if err != nil {
		fmt.Println(err)
		return
	}
	work, cancel := locker.WithLock(ctx, k)
	defer cancel()

	// An operator breaks the lock. A lease that could not be renewed ends in the same way.
	broken, err := l.(locker.Inspector).ForceRelease(ctx, "shard 12", k.Owner())
	fmt.Println("broken:", broken, err)

	<-work.Done()
	fmt.Println(context.Cause(work))
	fmt.Println("release:", k.Release(ctx))
	// Output:
	// broken: true <nil>
	// locker: lost "shard 12": expired
	// release: locker: lost "shard 12": expired
}

// New builds a Locker around any Backend. The observer is where logs, metrics and
// traces are made.
func ExampleNew() {
	ctx := context.Background()
	l, err := locker.New(memlock.NewBackend(nil), &locker.Config{
		TTL: 10 * time.Second,
		Observer: func(e locker.Event) {
			fmt.Println(e.Backend, e.Key, e.Kind, e.Label)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)

	err = locker.Do(ctx, l, "report", func(_ context.Context, k locker.Lock) error {
		fmt.Println("leased for", k.TTL())
		return nil
	}, locker.WithLabel("instance-1"))
	fmt.Println(err)
	// Output:
	// memory report acquired instance-1
	// leased for 10s
	// memory report released instance-1
	// <nil>
}

// A holder that was paused past its lease does not know that it lost the lock. The
// resource does, if it remembers the largest token and refuses smaller ones.
func Example_fencing() {
	ctx := context.Background()
	l, err := locker.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(ctx)

	var largest uint64
	write := func(who string, token uint64) {
		if token < largest {
			fmt.Println(who, "is refused")
			return
		}
		largest = token
		fmt.Println(who, "writes")
	}

	stale, err := l.Acquire(ctx, "file")
	if err != nil {
		fmt.Println(err)
		return
	}
	// Its lease ends while it is paused. Breaking the lock saves this example the wait.
	if _, err = l.(locker.Inspector).ForceRelease(ctx, "file", stale.Owner()); err != nil {
		fmt.Println(err)
	}
	err = locker.Do(ctx, l, "file", func(_ context.Context, k locker.Lock) error {
		write("the new holder", k.Token())
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	write("the old holder", stale.Token())
	// Output:
	// the new holder writes
	// the old holder is refused
}
