package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// mark is what the database knows about one day's report.
type mark struct {
	Token uint64 // the largest that it has seen
	By    string // who has done the report; empty: nobody yet
}

// see refuses the holder of an older lock, and remembers a newer one.
func (m *mark) see(token uint64) error {
	if token < m.Token {
		return &staleError{token, m.Token}
	}
	m.Token = token
	return nil
}

type staleError struct{ token, seen uint64 }

func (e *staleError) Error() string {
	return fmt.Sprintf("token %d is stale, the mark has seen %d", e.token, e.seen)
}

// begin tells the mark which lock is at work now, and returns what it was before. From
// here on it refuses the holders of older locks, even if this one never finishes.
func begin(ctx context.Context, db marks, day string, token uint64) (before mark, err error) {
	err = db.update(ctx, day, func(m *mark) error {
		if before = *m; before.By != "" {
			return nil
		}
		return m.see(token)
	})
	return before, err
}

// finish sets the mark. An application does this in the transaction that stores the
// report itself, so that there is never one without the other. What cannot be part of
// a transaction, such as a mail, can happen twice when an instance crashes before it.
func finish(ctx context.Context, db marks, day string, token uint64, name string) error {
	return db.update(ctx, day, func(m *mark) error {
		if err := m.see(token); err != nil {
			return err
		}
		m.By = name
		return nil
	})
}

// marks is the database. An application uses its own: the mark is a row in it.
type marks interface {
	// update reads a day's mark, lets change alter it and writes it back, in one
	// transaction. If change fails, nothing is written.
	update(ctx context.Context, day string, change func(*mark) error) error
}

// memory keeps marks as long as this process lives.
type memory struct {
	mu   sync.Mutex
	days map[string]mark
}

func newMemory() *memory { return &memory{days: make(map[string]mark)} }

func (db *memory) update(_ context.Context, day string, change func(*mark) error) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	m := db.days[day]
	if err := change(&m); err != nil {
		return err
	}
	db.days[day] = m
	return nil
}

// keepMarks is for how long after the run the marks stay in Redis.
const keepMarks = time.Hour

// inRedis keeps marks in Redis. They are as durable as that is configured to be.
type inRedis struct {
	*redis.Client
	prefix string
}

// openMarks connects to the Redis of the plan's URL. It has to be closed.
func openMarks(ctx context.Context, p plan) (*inRedis, error) {
	u, err := url.Parse(p.URL)
	if err != nil {
		return nil, errors.New("the URL cannot be parsed") // its text would show the password
	}
	query := u.Query()
	prefix := query.Get("prefix")
	query.Del("prefix") // locker's parameters: the client would refuse them
	query.Del("ttl")
	u.RawQuery = query.Encode()
	opts, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, errors.New("this example keeps its marks in Redis, and the URL is not one of Redis")
	}
	db := &inRedis{redis.NewClient(opts), prefix + "daily-report:" + p.Run + ":"}
	if err := db.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func (db *inRedis) update(ctx context.Context, day string, change func(*mark) error) error {
	key := db.prefix + day
	transaction := func(tx *redis.Tx) error {
		var m mark
		text, err := tx.Get(ctx, key).Bytes()
		if err == nil {
			err = json.Unmarshal(text, &m)
		} else if errors.Is(err, redis.Nil) {
			err = nil
		}
		if err != nil {
			return err
		}
		if err := change(&m); err != nil {
			return err
		}
		if text, err = json.Marshal(m); err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Set(ctx, key, text, keepMarks).Err()
		})
		return err
	}
	for {
		// Somebody else wrote the key in between: again, with what it says now.
		if err := db.Watch(ctx, transaction, key); !errors.Is(err, redis.TxFailedErr) {
			return err
		}
	}
}
