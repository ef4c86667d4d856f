package etcdlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

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
	client *clientv3.Client
	silent func(sent time.Time) // a request had no answer; nil: nothing follows from that
	slice  atomic.Int64         // of the next one, or 0: minSlice
}

// send makes one request. A member without a leader refuses it at once, and others are asked.
func send[R any](ctx context.Context, r *requester, request func(context.Context) (R, error)) (R, error) {
	return sendWithin(ctx, r, maxSlice, request)
}

// sendWithin is send, and gives the request up after most at the latest.
func sendWithin[R any](ctx context.Context, r *requester, most time.Duration, request func(context.Context) (R, error)) (R, error) {
	slice := min(max(time.Duration(r.slice.Load()), minSlice), most)
	bounded, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), slice)
	defer cancel()
	sent := time.Now()
	answer, err := request(bounded)
	// The client goes from member to member, one for each request. What else it does meanwhile
	// may bring all attempts of a lock to the same one, so this is not left to those.
	for tried := 1; errors.Is(err, rpctypes.ErrNoLeader) && tried < len(r.client.Endpoints()); tried++ {
		answer, err = request(bounded)
	}
	switch {
	case err == nil || didNothing(err):
		r.slice.Store(int64(minSlice))
	case bounded.Err() != nil && ctx.Err() == nil:
		if slice < most {
			r.slice.Store(int64(min(2*slice, maxSlice)))
		}
		if r.silent != nil {
			r.silent(sent)
		}
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

// didNothing reports whether the server has certainly done nothing.
func didNothing(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.ResourceExhausted,
		codes.PermissionDenied, codes.Unauthenticated, codes.OutOfRange, codes.Unimplemented:
		return true
	}
	return errors.Is(err, rpctypes.ErrNoLeader)
}

// isPermanent reports whether waiting does not cure err. A token that ran out is renewed
// by the client, and rights that were changed meanwhile are read anew.
func isPermanent(err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.Unimplemented:
		return true
	case codes.InvalidArgument, codes.FailedPrecondition:
		return !errors.Is(err, rpctypes.ErrAuthOldRevision)
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
