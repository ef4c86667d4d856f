package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// EtcdConfig configures a private etcd, or each member of a cluster. A nil *EtcdConfig
// stands for the defaults.
type EtcdConfig struct {
	// Sync has every write on disk before it is answered. Without it the system decides
	// when to write there (--unsafe-no-fsync): what was answered is still there after
	// Kill and Restart, but not after the machine's end.
	Sync bool

	// Heartbeat is how often a leader tells the others that it is alive: every 100 ms by
	// default, whole milliseconds.
	Heartbeat time.Duration

	// Election is for how long a leader may be silent before the others elect a new one,
	// which they do after once to twice this time: 1 s by default, whole milliseconds, and
	// at least five heartbeats. No lease is shorter than one and a half of it, in whole
	// seconds: 2 s by default, and 1 s with 500 ms.
	Election time.Duration

	// Quota is the size of the data, in bytes, from which on the server takes no more
	// (mvcc: database space exceeded). 0 is etcd's default, 2 GiB.
	Quota int64

	// Settings are further arguments, such as "--auto-compaction-retention=1s": by default
	// nothing is compacted. They come last, so they win. The addresses and the log have
	// to stay as they are.
	Settings []string
}

// Etcd is one etcd server. It is safe for concurrent use.
//
// Stop and Restart kill it, by which nothing is lost: an orderly end would wait for its
// clients' watches. A member of a cluster answers, and is ready, only once a majority of
// them runs: of three that are down, two have to be restarted at once.
type Etcd struct {
	server
	line *line
}

var etcdServer = program{
	name:   "etcd",
	ready:  []string{"ready to serve client requests"},
	finish: syscall.SIGKILL,
	quit:   syscall.SIGKILL,
}

// StartEtcd starts a private server and waits until it answers. ctx bounds the start
// only. Stop has to be called. If etcd was not built, the error matches
// ErrNotInstalled.
func StartEtcd(ctx context.Context, cfg *EtcdConfig) (*Etcd, error) {
	args, err := cfg.args()
	if err != nil {
		return nil, err
	}
	const name = "etcd"
	return startEtcd(ctx, args, name, []string{name}, nil)
}

// args are the arguments that the config stands for.
func (cfg *EtcdConfig) args() ([]string, error) {
	if cfg == nil {
		cfg = &EtcdConfig{}
	}
	if err := wholeMilliseconds(cfg.Heartbeat, cfg.Election); err != nil {
		return nil, err
	}
	if cfg.Quota < 0 {
		return nil, errors.New("testenv: a negative quota")
	}
	heartbeat, election := cmp.Or(cfg.Heartbeat, 100*time.Millisecond), cmp.Or(cfg.Election, time.Second)
	args := []string{
		fmt.Sprintf("--unsafe-no-fsync=%t", !cfg.Sync),
		fmt.Sprintf("--heartbeat-interval=%d", heartbeat.Milliseconds()),
		fmt.Sprintf("--election-timeout=%d", election.Milliseconds()),
		fmt.Sprintf("--quota-backend-bytes=%d", cfg.Quota),
	}
	return append(args, cfg.Settings...), nil
}

// startEtcd starts the server with this name among these. It speaks to the others over
// the line, which is nil if there are none.
func startEtcd(ctx context.Context, args []string, name string, names []string, l *line) (*Etcd, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	exe, err := findEtcd("etcd")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "locker-etcd-")
	if err != nil {
		return nil, err
	}
	urls := make([]string, len(names))
	for i, name := range names {
		urls[i] = name + "=" + peerURL(name)
	}
	e := &Etcd{server: server{dir: dir, program: etcdServer}, line: l}
	if l != nil {
		e.env = l.env()
	}
	e.answers = e.Ping
	err = e.start(ctx, func(port int) error {
		peers := local(port + secondPort)
		if l != nil {
			l.endAt(peers)
		}
		e.cmd = slices.Concat([]string{
			exe,
			"--name=" + name, "--data-dir=data", "--log-outputs=stderr",
			"--listen-client-urls=http://" + e.addr, "--advertise-client-urls=http://" + e.addr,
			"--listen-peer-urls=http://" + peers, "--initial-advertise-peer-urls=" + peerURL(name),
			"--initial-cluster=" + strings.Join(urls, ","),
		}, args)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// URL is the server's address as a URL: "etcd://127.0.0.1:port".
func (e *Etcd) URL() string { return "etcd://" + e.addr }

// CutOff separates a member of a cluster from the others, but not from its clients:
// connections to and from the others are broken when it returns, and new ones fail at once,
// until Reconnect. For
// a member that is cut off already there is an error; for a server that has no others it
// matches errors.ErrUnsupported.
func (e *Etcd) CutOff() error { return e.line.cut() }

// Reconnect ends a CutOff. For a server that is not cut off there is an error.
func (e *Etcd) Reconnect() error { return e.line.mend() }
