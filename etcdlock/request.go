package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-locker/locker"
)

const (
	// A request is given up after minSlice, so that a member, or a leader, that hangs costs
	// one slice. After each that got no answer the next one has twice the time, up to
	// maxSlice: a server that is merely slow is heard in the end.
	minSlice = time.Second
	maxSlice = 5 * time.Second
)

// requester bounds requests in time.
type requester struct {
	client  *clientv3.Client
	kv      clientv3.KV
	lessor  clientv3.Lease
	alive   pb.LeaseClient
	watcher clientv3.Watcher     // its watches wait for a connection
	logins  atomic.Int64         // see watch
	silent  func(sent time.Time) // a request had no answer; nil: nothing follows from that
	slice   atomic.Int64         // of the next one, or 0: minSlice
}

func (r *requester) use(client *clientv3.Client) {
	conn := prompt{client.ActiveConnection()}
	r.client, r.alive = client, pb.NewLeaseClient(conn)
	r.kv = clientv3.NewKVFromKVClient(pb.NewKVClient(conn), client)
	r.lessor = clientv3.NewLeaseFromLeaseClient(r.alive, client, 0)
	r.watcher = clientv3.NewWatchFromWatchClient(pb.NewWatchClient(client.ActiveConnection()), client)
}

func (r *requester) close() error { return errors.Join(r.watcher.Close(), r.lessor.Close()) }

// watch hands out what happens to a key from now on. It returns when the watch has ended, with
// ctx or by itself, or when see says that it is enough.
//
// A watch that began in the past would be told what is new only after up to 100 ms: so long the
// server leaves those that have to catch up.
//
// The watches of a client share a stream, and with it the login that it was opened with. When that
// has run out, no new watch is taken on it: the next ones go by another, which logs in.
func (r *requester) watch(ctx context.Context, key string, see func(clientv3.WatchResponse) (enough bool), opts ...clientv3.OpOption) {
	login := r.logins.Load()
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "locker-login", strconv.FormatInt(login, 10))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for seen := range r.watcher.Watch(ctx, key, opts...) {
		if err := seen.Err(); err != nil && slices.ContainsFunc(loginsOver, func(one error) bool { return strings.Contains(err.Error(), one.Error()) }) {
			r.logins.CompareAndSwap(login, login+1)
		}
		if see(seen) {
			return
		}
	}
}

// prompt is a client's connection on which requests fail while there is none to any member. The
// client itself has them wait for one, and repeats them: then nobody learns what is wrong. Options
// that calls share are not written into.
type prompt struct{ *grpc.ClientConn }

// Invoke implements grpc.ClientConnInterface.
func (c prompt) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConn.Invoke(ctx, method, args, reply, append(slices.Clip(opts), grpc.WaitForReady(false))...)
}

// NewStream implements grpc.ClientConnInterface.
func (c prompt) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConn.NewStream(ctx, desc, method, append(slices.Clip(opts), grpc.WaitForReady(false))...)
}

// send makes one request. If a member cannot answer it, others are asked.
func send[R any](ctx context.Context, r *requester, request func(context.Context) (R, error)) (R, error) {
	return sendWithin(ctx, r, maxSlice, request)
}

// sendWithin is send, and gives the request up after most at the latest.
func sendWithin[R any](ctx context.Context, r *requester, most time.Duration, request func(context.Context) (R, error)) (R, error) {
	slice := min(max(time.Duration(r.slice.Load()), minSlice), most)
	bounded, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), slice)
	defer cancel()
	sent := time.Now()
	ask := func() (R, error) {
		answer, err := request(bounded)
		return answer, rpctypes.Error(err) // not all of the client's methods do that
	}
	answer, err := ask()
	// The client goes from member to member, one for each request. What else it does meanwhile
	// may bring all attempts of a lock to the same one, so this is not left to those.
	for tried := 1; isPassing(err) && tried < max(len(r.client.Endpoints()), 2); tried++ {
		answer, err = ask()
	}
	switch {
	case err == nil || didNothing(err):
		// One that is always slow is not asked in vain again and again.
		r.slice.Store(int64(min(max(minSlice, 2*time.Since(sent)), maxSlice)))
	case bounded.Err() != nil && ctx.Err() == nil:
		err = fmt.Errorf("etcdlock: no answer within %v: %v", slice, err) //nolint:errorlint // it is not the caller's deadline
		if slice < most {
			r.slice.Store(int64(min(2*slice, maxSlice)))
		}
		if r.silent != nil {
			r.silent(sent)
		}
	}
	if errors.Is(err, rpctypes.ErrUserEmpty) && r.client.Username == "" {
		err = errNoUser
	}
	if code(err) == codes.Unavailable {
		// Who repeats the request waits for as long as is right. The connection would wait
		// for up to two minutes.
		r.client.ActiveConnection().ResetConnectBackoff()
	}
	return answer, err
}

// code is the kind of an error, the server's or the connection's.
func code(err error) codes.Code {
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return etcd.Code()
	}
	return status.Code(err) // of what is no status: Unknown
}

var errNoUser = fmt.Errorf("etcdlock: the server wants a user, and the client has none: %w", rpctypes.ErrPermissionDenied)

// passing are refusals after which the same request, sent again at once, may have an answer:
// by a member that has a leader, or that votes, or with the rights that the client has read anew.
var passing = []error{
	rpctypes.ErrNoLeader, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner),
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty,
}

// loginsOver are those of them that say that a login is over. A watch has their text alone.
var loginsOver = []error{rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision}

func isPassing(err error) bool {
	return slices.ContainsFunc(passing, func(one error) bool { return errors.Is(err, one) })
}

// didNothing reports whether the server has certainly done nothing. One whose store is full
// may say so after the write that filled it.
func didNothing(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition,
		codes.PermissionDenied, codes.Unauthenticated, codes.OutOfRange, codes.Unimplemented:
		return true
	case codes.Unavailable: // there was no connection to send anything on, says gRPC
		return isPassing(err) || strings.Contains(status.Convert(err).Message(), "Error while dialing")
	}
	return isPassing(err) || errors.Is(err, rpctypes.ErrTooManyRequests)
}

// isPermanent reports whether waiting does not cure err.
func isPermanent(err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.Unimplemented, codes.InvalidArgument, codes.FailedPrecondition:
		return !isPassing(err)
	}
	return false
}

// failed is how every error of the driver leaves this package: marked if waiting does not
// cure it, or if the server certainly did nothing.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case isPermanent(err):
		return locker.Permanent(err)
	case didNothing(err):
		return locker.NoEffect(err)
	}
	return err
}
