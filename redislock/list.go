package redislock

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
)

// page is how many keys the server is asked to look at in one SCAN. Of those that
// match, all are inspected in one pipeline.
const page = 500

// List implements locker.Inspector. It shows the strings with an expiry that begin
// with the prefix, by SCAN, which may show a key twice: on every master of a cluster,
// one after the other, and on every shard of a redis.Ring that is up.
func (b *backend) List(ctx context.Context, yield func(string, locker.Holding) bool) error {
	nodes, err := b.nodes(ctx)
	if err != nil {
		return b.failed(err)
	}
	for _, node := range nodes {
		for cursor := uint64(0); ; {
			if err := ctx.Err(); err != nil {
				return err // go-redis might send it all the same
			}
			var names []string
			names, cursor, err = node.ScanType(ctx, cursor, escapeGlob(b.prefix)+"*", page, "string").Result()
			if err != nil {
				return b.failed(err)
			}
			if more, err := b.show(ctx, node, names, yield); !more {
				return err
			}
			if cursor == 0 {
				break
			}
		}
	}
	return nil
}

// show yields those of names on node that are locks.
func (b *backend) show(ctx context.Context, node pipeliner, names []string, yield func(string, locker.Holding) bool) (more bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	var keys []string
	var calls []call
	for _, name := range names {
		if key, ok := b.key(name); ok {
			keys, calls = append(keys, key), append(calls, call{keys: []string{name}})
		}
	}
	if len(calls) == 0 {
		return true, nil
	}
	holdings, errs := make([]locker.Holding, len(keys)), make([]error, len(keys))
	b.runAll(ctx, node, inspectScript, calls, 0, func(i int, reply any, _, err error) {
		holdings[i], errs[i] = b.shown(reply, err)
	})
	for i, key := range keys {
		h, err := holdings[i], errs[i]
		if isRedirect(err) { // the key's slot has left the node meanwhile
			h, err = b.Inspect(ctx, key)
		}
		switch {
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // no string any more
		case err != nil:
			return false, err
		case h.Remaining > 0 && !yield(key, h):
			return false, nil
		}
	}
	return true, nil
}

func isRedirect(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
}

// nodes are the servers that have a part of the keys each.
func (b *backend) nodes(ctx context.Context) (nodes []redis.Cmdable, err error) {
	var mu sync.Mutex
	add := func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, node)
		return nil
	}
	switch c := b.rdb.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, add)
	case *redis.Ring:
		err = c.ForEachShard(ctx, add)
	default:
		nodes = []redis.Cmdable{c}
	}
	return nodes, err
}
