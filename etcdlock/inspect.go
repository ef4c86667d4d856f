package etcdlock

import (
	"cmp"
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
)

// Inspect implements locker.Inspector. It takes a second request for the time that the lease
// of a held key has left.
func (b *backend) Inspect(ctx context.Context, key string) (locker.Holding, error) {
	first, err := b.first(ctx, key)
	if first == nil {
		return locker.Holding{}, err
	}
	return b.holding(first, b.remaining(ctx, first.Lease)), nil
}

func (b *backend) holding(first *mvccpb.KeyValue, remaining time.Duration) locker.Holding {
	return locker.Holding{Holder: b.holder(first), Remaining: remaining, Token: uint64(first.CreateRevision) * TokenStep}
}

// first is the entry that holds a key, or nil.
func (b *backend) first(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	seen, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return b.kv.Get(ctx, b.line(key), clientv3.WithFirstCreate()...)
	})
	if err != nil {
		return nil, failed(err)
	}
	if len(seen.Kvs) == 0 {
		return nil, nil //nolint:nilnil // a free key is no error
	}
	return seen.Kvs[0], nil
}

// ForceRelease implements locker.Inspector. It takes two requests, deletes the entry that the
// first one has shown, and tells its holder.
func (b *backend) ForceRelease(ctx context.Context, key, holder string) (bool, error) {
	first, err := b.first(ctx, key)
	if err != nil || first == nil || b.holder(first) != holder {
		return false, err
	}
	entry, sentinel := string(first.Key), b.sentinel(clientv3.LeaseID(first.Lease))
	there := clientv3.Compare(clientv3.CreateRevision(entry), "=", first.CreateRevision)
	done, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return b.kv.Txn(ctx).If(there).Then(
			clientv3.OpDelete(entry),
			clientv3.OpTxn(
				[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(sentinel), ">", 0)}, // it is ours
				[]clientv3.Op{clientv3.OpPut(sentinel, removal(entry, first.CreateRevision), clientv3.WithIgnoreLease())}, nil),
		).Commit()
	})
	if err != nil {
		return false, failed(err)
	}
	return done.Succeeded, nil
}

// pageSize is how many entries List reads at a time.
const pageSize = 1000

// List implements locker.Inspector. The entries of a key stand together in the store, but not
// in the order of their line.
func (b *backend) List(ctx context.Context, yield func(key string, h locker.Holding) bool) error {
	var key string
	var first *mvccpb.KeyValue // of those of key so far
	left := make(map[int64]time.Duration)
	show := func() bool {
		if first == nil {
			return true
		}
		remaining, known := left[first.Lease]
		if !known {
			if len(left) == pageSize {
				clear(left)
			}
			remaining = b.remaining(ctx, first.Lease)
			left[first.Lease] = remaining
		}
		return yield(key, b.holding(first, remaining))
	}
	from, end := cmp.Or(b.prefix, "\x00"), clientv3.GetPrefixRangeEnd(b.prefix)
	for {
		seen, err := send(ctx, &b.requester, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return b.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize))
		})
		if err != nil {
			return failed(err)
		}
		for _, kv := range seen.Kvs {
			k, _, ok := b.keyOf(string(kv.Key))
			switch {
			case !ok:
			case first != nil && k == key:
				if kv.CreateRevision < first.CreateRevision {
					first = kv
				}
			case !show():
				return nil
			default:
				key, first = k, kv
			}
		}
		if !seen.More {
			show()
			return nil
		}
		from = string(seen.Kvs[len(seen.Kvs)-1].Key) + "\x00"
	}
}
