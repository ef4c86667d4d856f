package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-locker/locker"
)

const (
	maxPrefixBytes = 512
	maxSpread      = 64
	defaultMinTTL  = 2 * time.Second
)

// Config configures a Locker. A nil *Config stands for the defaults.
type Config struct {
	locker.Config

	// Prefix begins the names of all locks: see Name. Lockers exclude each other if it is
	// the same; no other key of the store, and no other prefix, must begin with it.
	// It is valid UTF-8 without NUL, of at most 512 bytes. Nil: DefaultPrefix.
	Prefix *string

	// MinTTL is the shortest lease of the cluster: one and a half times its election
	// timeout, rounded up to whole seconds. Zero: 2 s, which is that of etcd's own timing. A
	// server whose shortest is longer gives that: see Lock.TTL.
	MinTTL time.Duration

	// Leases is over how many leases the locks are spread, by their keys: one that is lost
	// takes its locks with it. Zero: 1. At most 64. Each TTL has leases of its own.
	Leases int
}

// New returns a Locker on client, which it never closes. It does no I/O. Bad settings are
// locker.ErrInvalid.
func New(client *clientv3.Client, cfg *Config) (locker.Locker, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	b, err := newBackend(client, cfg)
	if err != nil {
		return nil, err
	}
	return locker.New(b, &cfg.Config)
}

// NewBackend returns the Backend of New, for wrapping it. It makes no use of the embedded
// locker.Config.
func NewBackend(client *clientv3.Client, cfg *Config) (locker.Backend, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	b, err := newBackend(client, cfg)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// backend implements locker.Backend.
type backend struct {
	prefix string
	minTTL time.Duration
	spread int
	seed   maphash.Seed // spreads the keys over the leases
	owned  func() error // closes the client, if Open made it
	report func(key, owner string, err error)

	requester
	crew   crew
	ctx    context.Context // ends with the backend
	cancel context.CancelFunc
	last   context.Context // of what ends the leases, which goes on after ctx
	finish context.CancelFunc

	mu     sync.Mutex
	leases map[slot]*opening   // that take new locks
	all    map[*lease]struct{} // that have not ended
	closed bool
}

var (
	_ locker.Backend      = (*backend)(nil)
	_ locker.Queuer       = (*backend)(nil)
	_ locker.BatchRenewer = (*backend)(nil)
	_ locker.LossPusher   = (*backend)(nil)
	_ locker.Inspector    = (*backend)(nil)
	_ locker.Closer       = (*backend)(nil)
)

func newBackend(client *clientv3.Client, cfg *Config) (*backend, error) {
	prefix, err := cfg.check()
	if err != nil {
		return nil, err
	}
	if client == nil {
		return nil, invalidf("no etcd client")
	}
	b := &backend{
		prefix: prefix, spread: max(cfg.Leases, 1), seed: maphash.MakeSeed(),
		minTTL: cmp.Or(cfg.MinTTL, defaultMinTTL),
		report: func(string, string, error) {}, leases: make(map[slot]*opening), all: make(map[*lease]struct{}),
	}
	b.use(client)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.last, b.finish = context.WithCancel(context.Background())
	return b, nil
}

// check returns the prefix, or what is wrong with the settings.
func (cfg *Config) check() (prefix string, err error) {
	prefix = DefaultPrefix
	if cfg.Prefix != nil {
		prefix = *cfg.Prefix
	}
	switch {
	case cfg.Leases < 0 || cfg.Leases > maxSpread:
		err = invalidf("%d leases: between 1 and %d are possible, and 0 stands for 1", cfg.Leases, maxSpread)
	case cfg.MinTTL != 0 && (cfg.MinTTL < time.Second || cfg.MinTTL > locker.MaxTTL || cfg.MinTTL%time.Second != 0):
		err = invalidf("MinTTL %v is no whole number of seconds between 1s and %v", cfg.MinTTL, locker.MaxTTL)
	case len(prefix) > maxPrefixBytes:
		err = invalidf("prefix of %d bytes, at most %d are allowed", len(prefix), maxPrefixBytes)
	case !utf8.ValidString(prefix):
		err = invalidf("prefix %q is not valid UTF-8", prefix)
	case strings.ContainsRune(prefix, 0):
		err = invalidf("prefix %q contains a NUL byte", prefix)
	}
	return prefix, err
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{locker.ErrInvalid}, args...)...)
}

// Info implements locker.Backend.
func (b *backend) Info() locker.Info {
	return locker.Info{
		Name: "etcd",
		Can: locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapWakeUp | locker.CapFIFO |
			locker.CapPushLoss | locker.CapExpiry | locker.CapInterop | locker.CapInspect | locker.CapLeasedPlace,
		Unit: time.Second, MinTTL: b.minTTL,
		Deadlines: true, Multiplexed: true,
	}
}

// OnLoss implements locker.LossPusher.
func (b *backend) OnLoss(report func(key, owner string, err error)) { b.report = report }

// Close implements locker.Closer. It ends all leases.
func (b *backend) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	live := slices.Collect(maps.Keys(b.all))
	b.mu.Unlock()
	for _, l := range live {
		l.end(locker.ErrClosed)
	}
	b.cancel()
	err := b.crew.close(ctx)
	b.finish()
	err = errors.Join(err, b.requester.close())
	if b.owned != nil {
		err = errors.Join(err, b.owned())
	}
	return err
}
