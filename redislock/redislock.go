package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
)

const maxPrefixBytes = 512

// Config configures a Locker on Redis. A nil *Config stands for the defaults.
type Config struct {
	locker.Config

	// Prefix stands in front of every key: the lock "k" is the key Prefix+"k" in
	// Redis, byte for byte. It is valid UTF-8 without NUL, of at most 512 bytes.
	// Clients of other libraries that are to take part have to use the same key.
	Prefix string

	// Replicas is how many replicas have to have acknowledged a grant before it is
	// handed out, and a renewal before it counts, by WAIT. With fewer, the grant is
	// undone and refused with a *ReplicasError, and the renewal is repeated until
	// enough of them are back or the lock's Deadline is reached. Zero: none. A
	// negative one, or one over 100, is locker.ErrInvalid, and so is a client other
	// than a *redis.Client or a *redis.ClusterClient. See the package comment for
	// how many to choose, and for what it does not give.
	Replicas int

	// ReplicaTimeout is how long the server waits for them, from 1 ms to a minute
	// and less than the client's ReadTimeout; but for a third of the lock's TTL at
	// most, and not past the end of the call's context. Zero: half a second, or half
	// of the ReadTimeout if that is less. Without Replicas it has to be zero.
	ReplicaTimeout time.Duration
}

// New returns a Locker on the server, or the servers, of rdb. It does no I/O and
// never closes rdb. Bad settings are locker.ErrInvalid.
func New(rdb redis.UniversalClient, cfg *Config) (locker.Locker, error) {
	b, err := NewBackend(rdb, cfg)
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		cfg = &Config{}
	}
	return locker.New(b, &cfg.Config)
}

// NewBackend returns the Backend of New, for wrapping it. Of cfg it uses all but the
// embedded locker.Config. It does no I/O and never closes rdb. Bad settings are
// locker.ErrInvalid.
func NewBackend(rdb redis.UniversalClient, cfg *Config) (locker.Backend, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	return newBackend(rdb, cfg)
}

// backend implements locker.Backend. Next to what it shares with rdb it owns the
// connection that listens for wake-ups.
type backend struct {
	names
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // rdb, if it is one

	epoch  time.Time
	looked atomic.Int64 // when lookForMasters did, since epoch; 0: never

	replicas  replicas
	deadlines bool // rdb was made with ContextTimeoutEnabled
	listener  *listener
	examiner  *examiner
	owned     io.Closer // the client, if Open made it
}

var (
	_ locker.Backend      = (*backend)(nil)
	_ locker.Waker        = (*backend)(nil)
	_ locker.Extender     = (*backend)(nil)
	_ locker.BatchRenewer = (*backend)(nil)
	_ locker.Inspector    = (*backend)(nil)
	_ locker.Warner       = (*backend)(nil)
	_ locker.Closer       = (*backend)(nil)
)

func newBackend(rdb redis.UniversalClient, cfg *Config) (*backend, error) {
	prefix := cfg.Prefix
	switch v := reflect.ValueOf(rdb); {
	case !v.IsValid(), v.Kind() == reflect.Pointer && v.IsNil():
		return nil, invalidf("no Redis client")
	case len(prefix) > maxPrefixBytes:
		return nil, invalidf("prefix of %d bytes, at most %d are allowed", len(prefix), maxPrefixBytes)
	case !utf8.ValidString(prefix):
		return nil, invalidf("prefix %q is not valid UTF-8", prefix)
	case strings.ContainsRune(prefix, 0):
		return nil, invalidf("prefix %q contains a NUL byte", prefix)
	}
	b := &backend{rdb: rdb, epoch: time.Now()}
	b.prefix = prefix
	var readTimeout time.Duration
	switch c := rdb.(type) {
	case *redis.Client:
		b.deadlines = c.Options().ContextTimeoutEnabled
		readTimeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		b.deadlines = c.Options().ContextTimeoutEnabled
		readTimeout = c.Options().ReadTimeout
		b.cluster = c
		b.slotted.Store(true)
	default:
		if cfg.Replicas != 0 {
			return nil, invalidf("Replicas with a client of type %T, whose connections are not known", rdb)
		}
	}
	var err error
	if b.replicas, err = newReplicas(cfg, readTimeout); err != nil {
		return nil, err
	}
	b.listener, b.examiner = newListener(b), newExaminer(b)
	return b, nil
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{locker.ErrInvalid}, args...)...)
}

// Info implements locker.Backend.
func (b *backend) Info() locker.Info {
	return locker.Info{
		Name: "redis",
		Can: locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapWakeUp |
			locker.CapExtend | locker.CapExpiry | locker.CapInterop | locker.CapInspect,
		Unit:      time.Millisecond,
		MinTTL:    time.Millisecond,
		Deadlines: b.deadlines,
	}
}

// Close implements locker.Closer. It ends the listening connection and, if Open made
// it, the client; an examination under way is given up. It waits until nothing runs
// any more, or ctx ends.
func (b *backend) Close(ctx context.Context) error {
	err := errors.Join(b.listener.close(ctx), b.examiner.close(ctx))
	if b.owned != nil {
		err = errors.Join(err, b.owned.Close())
	}
	return err
}
