package etcdlock

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-locker/locker"
)

// meddler has something done instead of the next request of a kind, or around it.
type meddler struct{ next sync.Map } // by kind: meddling

type meddling = func(send func() error) error

func (m *meddler) with(kind string, do meddling) { m.next.Store(kind, do) }

func (m *meddler) do(method string, send func() error) error {
	if do, ok := m.next.LoadAndDelete(path.Base(method)); ok {
		return do.(meddling)(send)
	}
	return send()
}

func (m *meddler) connect(t testing.TB, addrs ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					return m.do(method, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
				}),
			grpc.WithChainStreamInterceptor(
				func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (s grpc.ClientStream, err error) {
					err = m.do(method, func() error {
						s, err = open(ctx, desc, cc, method, opts...)
						return err
					})
					return s, err
				}),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

var errBroken = status.Error(codes.Unavailable, "error reading from server: EOF")

// lost is a request whose answer gets lost.
func lost(send func() error) error { return errors.Join(send(), errBroken) }

func enqueue(t testing.TB, b *backend, req locker.Request) *place {
	t.Helper()
	p, err := b.Enqueue(context.Background(), req)
	require.NoError(t, err)
	return p.(*place)
}

// claim waits for the turn of a place.
func claim(t testing.TB, p *place) *grant {
	t.Helper()
	for {
		switch g, err := p.Claim(context.Background()); {
		case err == nil:
			return g.(*grant)
		default:
			require.ErrorIs(t, err, locker.ErrHeld)
			<-p.Turn()
		}
	}
}

// Of an entry that may be there nobody knows which revision to look for: the place is given up.
func TestPlace_withoutAnAnswerIsNotClaimed(t *testing.T) { // G4, W3
	t.Parallel()
	var m meddler
	c := m.connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	for name, do := range map[string]func(send func() error) error{
		"the request was lost": func(func() error) error { return errBroken },
		"the answer was lost":  lost,
	} {
		held := take(t, b, request("k", 10*time.Second))
		m.with("Txn", do)
		p := enqueue(t, b, request("k", 10*time.Second))
		require.Nil(t, b.leases[slot{10 * time.Second, 0}], name)
		require.NoError(t, held.Release(t.Context()))
		g, err := p.Claim(t.Context())
		require.Nil(t, g, name)
		require.ErrorIs(t, err, errBroken, name)
		require.NotErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, p.Leave(t.Context()))
		require.Empty(t, entries(t, c), name)
	}
}

// A request that arrives after all has made an entry that nobody knows of: a renewal of what
// stands on its lease finds it. The entry of the same name on another lease stays.
func TestPlace_whatArrivesTooLateIsSwept(t *testing.T) { // G4, C01
	t.Parallel()
	var m meddler
	c := m.connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	kept := take(t, b, request("kept", 10*time.Second))
	held := take(t, b, request("k", 10*time.Second))
	m.with("Txn", func(func() error) error { return errBroken })
	req := request("k", 10*time.Second)
	p := enqueue(t, b, req)
	require.NoError(t, p.Leave(t.Context()))
	require.NoError(t, held.Release(t.Context()))
	ghost := b.entry(kept.l, req, nil)
	_, err := c.Put(t.Context(), ghost.name, ghost.holder, clientv3.WithLease(kept.l.id)) // now it arrives
	require.NoError(t, err)
	again := take(t, b, request("other", 10*time.Second))
	require.NotEqual(t, kept.l.id, again.l.id)
	_, err = kept.Renew(t.Context(), 10*time.Second)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !slices.Contains(entries(t, c), ghost.name) }, soon, time.Millisecond)
	require.NoError(t, kept.Release(t.Context()))
	require.NoError(t, again.Release(t.Context()))
}

func TestLease_strikesOnlyWhatStandsOnIt(t *testing.T) { // G1
	t.Parallel()
	c := connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	old := take(t, b, request("old", 10*time.Second))
	_, err := c.Put(t.Context(), "locker/k/x", "", clientv3.WithLease(old.l.id))
	require.NoError(t, err)
	old.l.resign()
	young := take(t, b, request("young", 10*time.Second))
	seen, err := c.TimeToLive(t.Context(), old.l.id, clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Contains(t, seen.Keys, []byte("locker/k/x"))
	_, err = c.Put(t.Context(), "locker/k/x", "", clientv3.WithLease(young.l.id)) // it has moved
	require.NoError(t, err)
	old.l.strike("locker/k/x")
	require.Contains(t, entries(t, c), "locker/k/x")
	young.l.strike("locker/k/x")
	require.NotContains(t, entries(t, c), "locker/k/x")
	require.NoError(t, old.Release(t.Context()))
	require.NoError(t, young.Release(t.Context()))
}

// The lease ends while the answer to a claim is on its way: nobody would tell the loss of what
// was claimed.
func TestPlace_isNoLockOnALeaseThatHasEnded(t *testing.T) { // H5, G1
	t.Parallel()
	var m meddler
	c := m.connect(t, startServer(t).Addr())
	b := backendOn(t, c, nil)
	held := take(t, b, request("k", 10*time.Second))
	p := enqueue(t, b, request("k", 10*time.Second))
	require.NoError(t, held.Release(t.Context()))
	ended := p.e.l
	m.with("Txn", func(send func() error) error {
		err := send()
		if _, revoked := c.Revoke(t.Context(), ended.id); revoked != nil {
			return revoked
		}
		<-ended.ctx.Done()
		return err
	})
	p.call()
	g := claim(t, p)
	require.NotSame(t, ended, g.l)
	require.NoError(t, g.Release(t.Context()))
	require.Eventually(t, func() bool { return len(entries(t, c)) == 0 }, soon, time.Millisecond)
}

func TestErrors_sayWhatTheyLeaveOpen(t *testing.T) { // G4, W4
	for _, c := range []struct {
		err                error
		nothing, permanent bool
	}{
		{rpctypes.ErrNoLeader, true, false},
		{rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner), true, false},
		{rpctypes.ErrInvalidAuthToken, true, false},
		{rpctypes.ErrAuthOldRevision, true, false},
		{rpctypes.ErrUserEmpty, true, false},
		{rpctypes.ErrTooManyRequests, true, false},
		{rpctypes.ErrPermissionDenied, true, true},
		{rpctypes.ErrLeaseNotFound, true, false},
		{rpctypes.ErrTooManyOps, true, true},
		// The write that fills the store is made, and answered with this.
		{rpctypes.ErrNoSpace, false, false},
		{rpctypes.ErrTimeout, false, false},
		{rpctypes.ErrTimeoutDueToLeaderFail, false, false},
		{rpctypes.ErrLeaderChanged, false, false},
		{rpctypes.ErrStopped, false, false},
		{errBroken, false, false},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: refused"`), true, false},
		{context.DeadlineExceeded, false, false},
		{errors.New("other"), false, false},
	} {
		require.Equal(t, c.nothing, didNothing(c.err), c.err)
		require.Equal(t, c.permanent, isPermanent(c.err), c.err)
	}
}

// A member without a leader refuses, and the next one is asked.
func TestErrors_ofOneMemberAreNotTheClusters(t *testing.T) { // H3, W4
	t.Parallel()
	var m meddler
	b := backendOn(t, m.connect(t, startServer(t).Addr()), nil)
	refused := func(func() error) error { return rpctypes.ErrGRPCNoLeader }
	m.with("Txn", refused)
	g := take(t, b, request("k", 10*time.Second))
	before := g.Lease().Since
	m.with("LeaseKeepAlive", refused)
	renewed, err := g.Renew(t.Context(), 10*time.Second)
	require.NoError(t, err)
	require.True(t, renewed.Since.After(before))
	require.NoError(t, g.Release(t.Context()))
}

// With no member to connect to, the error says so, at once.
func TestErrors_sayWhyNoMemberCanBeReached(t *testing.T) { // W4
	t.Parallel()
	srv := startServer(t)
	for name, l := range map[string]locker.Locker{
		"a client of its own": opened(t, srv.URL(), locker.Config{}),
		"the caller's client": lockerOn(t, connect(t, srv.Addr()), locker.Config{}),
	} {
		k, err := l.TryAcquire(t.Context(), uuid.NewString())
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, srv.Kill())
		require.Eventually(t, func() bool { // the connection may have to notice
			_, err = l.TryAcquire(t.Context(), "k")
			return err != nil && status.Code(errors.Unwrap(err)) != codes.OK && didNothing(errors.Unwrap(err))
		}, soon, time.Millisecond, name)
		require.ErrorContains(t, err, "Error while dialing", name)
		require.NoError(t, srv.Restart(t.Context()))
		require.Eventually(t, func() bool {
			k, err = l.TryAcquire(t.Context(), "k")
			return err == nil
		}, soon, 10*time.Millisecond, name)
		require.NoError(t, k.Release(t.Context()))
	}
}
