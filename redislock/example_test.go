package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/redislock"
)

func Example() {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		ContextTimeoutEnabled: true,
		DialerRetries:         1,
	})
	l, err := redislock.New(rdb, &redislock.Config{Prefix: "app:"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer func() { _ = errors.Join(l.Close(ctx), rdb.Close()) }() // in this order

	err = locker.Do(ctx, l, "invoice/42", func(ctx context.Context, k locker.Lock) error {
		fmt.Println("alone, with token", k.Token())
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

func ExampleNew_tryAcquire() {
	l, err := redislock.New(redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      []string{"node1:6379", "node2:6379"},
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: time.Second,
	}), nil)
	if err != nil {
		log.Fatal(err)
	}
	k, err := l.TryAcquire(context.Background(), "nightly-report", locker.WithLabel("worker 7"))
	var held *locker.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println(held.Holder, "is at it, for", held.Remaining)
	case err != nil:
		log.Print(err) // an outage is never reported as held
	default:
		defer func() { _ = k.Release(context.Background()) }()
		report()
	}
}

func report() {}

func ExampleNewBackend() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	b, err := redislock.NewBackend(rdb, &redislock.Config{Prefix: "app:"})
	if err != nil {
		log.Fatal(err)
	}
	// A wrapper goes here; locker.New checks that it still has what Info declares.
	l, err := locker.New(b, &locker.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close(context.Background())
}
