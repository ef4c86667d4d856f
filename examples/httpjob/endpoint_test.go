package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.Leaving...) }

// opener opens the Locker of one more instance on the test's store.
type opener func(context.Context) (locker.Locker, error)

func inMemory() opener {
	store := memlock.NewStore()
	return func(context.Context) (locker.Locker, error) { return memlock.New(store, nil) }
}

// onRedis starts a server of the test's own, which it may pause and kill.
func onRedis(t *testing.T) (*testenv.Redis, opener) {
	t.Helper()
	srv, err := testenv.StartRedis(t.Context(), nil)
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	return srv, func(ctx context.Context) (locker.Locker, error) { return locker.Open(ctx, srv.URL()) }
}

// onEach runs a test over memory and over Redis.
func onEach(t *testing.T, test func(*testing.T, opener)) {
	t.Run("memory", func(t *testing.T) { test(t, inMemory()) })
	t.Run("redis", func(t *testing.T) {
		_, open := onRedis(t)
		test(t, open)
	})
}

// work is a job that a test looks into.
type work struct {
	began  chan locker.Lock // a value for each run
	finish chan error       // ends one
	cut    chan error       // the cause, when a run's context ended before
}

func newWork() *work {
	return &work{make(chan locker.Lock, 100), make(chan error, 100), make(chan error, 100)}
}

func (w *work) do(ctx context.Context, k locker.Lock) error {
	w.began <- k
	select {
	case err := <-w.finish:
		return err
	case <-ctx.Done():
		w.cut <- context.Cause(ctx)
		return context.Cause(ctx)
	}
}

// app is instances of an application, and a client of theirs.
type app struct {
	t         *testing.T
	story     // for its client
	work      *work
	instances []*instance
}

const patience = 500 * time.Millisecond

func start(t *testing.T, open opener, n int, ttl time.Duration) *app {
	t.Helper()
	a := &app{t: t, work: newWork()}
	a.client = &http.Client{}
	a.out = t.Output()
	a.story.start = time.Now()
	jobs := map[string]job{
		"report": a.work.do,
		"broken": func(context.Context, locker.Lock) error { panic("a mistake") },
		"blind": func(ctx context.Context, k locker.Lock) error { // does not look at its ctx
			_ = a.work.do(ctx, k)
			return nil
		},
	}
	for i := range n {
		name := fmt.Sprintf("instance-%d", i+1)
		locks, err := open(t.Context())
		require.NoError(t, err)
		log := func(format string, args ...any) { a.tell(name, format, args...) }
		in, err := serve(t.Context(), "127.0.0.1:0", settings{
			Name: name, Keys: "test:", TTL: ttl, Limit: time.Hour, Patience: patience,
		}, locks, jobs, log)
		require.NoError(t, err)
		a.instances = append(a.instances, in)
	}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		for _, in := range a.instances {
			_ = in.shutdown(over) // it says so if the test has broken the store
		}
		a.client.CloseIdleConnections()
	})
	return a
}

// ask starts a job on the nth instance.
func (a *app) ask(n int, name string) reply {
	a.t.Helper()
	r, err := a.send(a.t.Context(), http.MethodPost, a.instances[n].url+"/jobs/"+name)
	require.NoError(a.t, err)
	return r
}

func (a *app) requireAccepted(r reply) {
	a.t.Helper()
	require.Equal(a.t, http.StatusAccepted, r.Code, "%v", r)
	require.Equal(a.t, running, r.State)
	require.NotZero(a.t, r.Token)
}

// requireState waits until the run has ended, and looks how.
func (a *app) requireState(of reply, want state) reply {
	a.t.Helper()
	var r reply
	require.Eventually(a.t, func() bool {
		var err error
		r, err = a.send(a.t.Context(), http.MethodGet, of.Where)
		return err == nil && r.State != running
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(a.t, want, r.State, "%v", r)
	require.Equal(a.t, of.Token, r.Token)
	return r
}

// await waits for what a job tells.
func await[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(20 * time.Second):
		require.Fail(t, "nothing came")
	}
	return v
}

func TestEndpoint_runsOneOfManyRequestsAndTellsTheOthersWhoDoes(t *testing.T) { // G1, G5
	onEach(t, func(t *testing.T, open opener) {
		const ttl = 10 * time.Second
		a := start(t, open, 4, ttl)
		for range 2 { // and again, when it is done
			replies := make([]reply, 40)
			var wg sync.WaitGroup
			for i := range replies {
				wg.Go(func() {
					var err error
					if replies[i], err = a.post(t.Context(), a.instances[i%len(a.instances)]); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			var accepted []reply
			for _, r := range replies {
				if r.Code == http.StatusAccepted {
					accepted = append(accepted, r)
				}
			}
			require.Len(t, accepted, 1)
			a.requireAccepted(accepted[0])
			await(t, a.work.began)
			require.Empty(t, a.work.began, "one run")
			for _, r := range replies {
				if r.Code == http.StatusAccepted {
					continue
				}
				require.Equal(t, http.StatusConflict, r.Code, "%v", r)
				require.Equal(t, "job already running", r.Detail)
				require.Equal(t, accepted[0].Instance, r.Holder)
				seconds, err := strconv.Atoi(r.RetryAfter)
				require.NoError(t, err, "whole seconds")
				require.Positive(t, seconds)
				require.LessOrEqual(t, seconds, int(ttl.Seconds()))
			}
			a.work.finish <- nil
			a.requireState(accepted[0], done)
		}
	})
}

func TestSeconds_roundUp(t *testing.T) {
	for d, want := range map[time.Duration]int{
		time.Nanosecond: 1, time.Second: 1, time.Second + 1: 2, 1500 * time.Millisecond: 2, locker.MaxTTL: 20 * 24 * 3600,
	} {
		require.Equal(t, want, seconds(d), "%v", d)
	}
}

func TestEndpoint_retryAfterIsALeaseWhereTheStoreDoesNotKnow(t *testing.T) {
	srv, open := onRedis(t)
	opts, err := redis.ParseURL(srv.URL())
	require.NoError(t, err)
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	require.NoError(t, rdb.Set(t.Context(), "test:report", "nobody-we-know", 0).Err()) // no expiry
	a := start(t, open, 1, 2500*time.Millisecond)
	r := a.ask(0, "report")
	require.Equal(t, http.StatusConflict, r.Code)
	require.Equal(t, "nobody-we-know", r.Holder)
	require.Equal(t, "3", r.RetryAfter)
}

func TestEndpoint_anOutageIsNoConflict(t *testing.T) { // G7, C09
	for name, fail := range map[string]func(*testenv.Redis) error{
		"refused": (*testenv.Redis).Kill,
		"silent":  (*testenv.Redis).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			srv, open := onRedis(t)
			a := start(t, open, 2, 300*time.Millisecond)
			running := a.ask(0, "report")
			a.requireAccepted(running)
			require.Equal(t, http.StatusConflict, a.ask(1, "report").Code)

			require.NoError(t, fail(srv))
			asked := time.Now()
			r := a.ask(1, "report") // though it runs, and this instance was told so a moment ago
			require.Equal(t, http.StatusServiceUnavailable, r.Code, "%v", r)
			require.Empty(t, r.RetryAfter)
			require.Empty(t, r.Holder)
			require.NotContains(t, r.Detail, srv.Addr())
			require.Less(t, time.Since(asked), patience+5*time.Second)

			// The job is told in time that it is no longer alone for certain.
			require.ErrorIs(t, await(t, a.work.cut), locker.ErrLost)
			a.requireState(running, lost)
			require.Equal(t, http.StatusServiceUnavailable, a.ask(0, "report").Code)
			if name == "refused" {
				require.NoError(t, srv.Restart(t.Context()))
			} else {
				require.NoError(t, srv.Resume())
			}
			require.Eventually(t, func() bool { return a.ask(1, "report").Code == http.StatusAccepted }, 20*time.Second, 20*time.Millisecond)
		})
	}
}

func TestEndpoint_clientThatHangsUpDoesNotEndTheJob(t *testing.T) { // G2, C39
	onEach(t, func(t *testing.T, open opener) {
		a := start(t, open, 1, time.Second)
		ctx, hangUp := context.WithCancel(t.Context())
		r, err := a.send(ctx, http.MethodPost, a.instances[0].url+"/jobs/report")
		require.NoError(t, err)
		a.requireAccepted(r)
		k := await(t, a.work.began)
		hangUp()
		a.client.CloseIdleConnections()
		deadline := k.Deadline()
		require.Eventually(t, func() bool { return k.Deadline().After(deadline) }, 20*time.Second, 5*time.Millisecond, "renewed")
		require.Empty(t, a.work.cut)
		a.work.finish <- nil
		a.requireState(r, done)
	})
}

func TestEndpoint_clientThatHangsUpBeforeTheAnswerLeavesNothingTaken(t *testing.T) { // G4, C02
	srv, open := onRedis(t)
	a := start(t, open, 2, time.Minute)
	a.work.finish <- nil
	a.requireState(a.ask(0, "report"), done) // connections are open
	await(t, a.work.began)
	require.NoError(t, srv.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := a.send(ctx, http.MethodPost, a.instances[0].url+"/jobs/report")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, srv.Resume())
	require.Eventually(t, func() bool {
		select {
		case <-a.work.began: // the lock came before it was noticed that the client had gone
			a.work.finish <- nil
		default:
		}
		return a.ask(1, "report").Code == http.StatusAccepted
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, http.StatusConflict, a.ask(0, "report").Code)
}

func TestEndpoint_lostLockEndsTheJobAndIsTold(t *testing.T) { // H3, H4, C33
	onEach(t, func(t *testing.T, open opener) {
		a := start(t, open, 2, time.Second)
		for _, name := range []string{"report", "blind"} {
			r := a.ask(0, name)
			a.requireAccepted(r)
			await(t, a.work.began)
			operator := a.instances[1].locks.(locker.Inspector)
			shown, err := operator.Inspect(t.Context(), "test:"+name)
			require.NoError(t, err)
			freed, err := operator.ForceRelease(t.Context(), "test:"+name, shown.Holder)
			require.NoError(t, err)
			require.True(t, freed)
			require.ErrorIs(t, await(t, a.work.cut), locker.ErrLost)
			require.Contains(t, a.requireState(r, lost).Error, "lost")
			next := a.ask(1, name)
			a.requireAccepted(next)
			require.Greater(t, next.Token, r.Token, "G3")
			await(t, a.work.began)
			a.work.finish <- nil
			a.requireState(next, done)
		}
	})
}

func TestEndpoint_jobThatHangsIsLostAtItsLimit(t *testing.T) { // H1, C48
	a := start(t, inMemory(), 1, 200*time.Millisecond)
	a.instances[0].Limit = 50 * time.Millisecond
	r := a.ask(0, "report")
	a.requireAccepted(r)
	require.Contains(t, a.requireState(r, lost).Error, string(locker.ReasonMaxHold))
}

func TestEndpoint_failureIsTold(t *testing.T) {
	a := start(t, inMemory(), 1, time.Minute)
	r := a.ask(0, "report")
	a.work.finish <- errors.New("no paper")
	require.Equal(t, "no paper", a.requireState(r, failed).Error)

	r = a.ask(0, "broken") // C27: the lock is given back
	require.Equal(t, "panic: a mistake", a.requireState(r, failed).Error)
	r = a.ask(0, "broken")
	a.requireAccepted(r)
	a.requireState(r, failed)
}

func TestEndpoint_refusesWhatItDoesNotHave(t *testing.T) {
	a := start(t, inMemory(), 1, time.Minute)
	require.Equal(t, http.StatusNotFound, a.ask(0, "coffee").Code)
	r, err := a.send(t.Context(), http.MethodGet, a.instances[0].url+"/jobs/report")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, r.Code, "it has not run")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, a.instances[0].url+"/jobs/report", nil)
	require.NoError(t, err)
	resp, err := a.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
}

// shutDown begins to shut the nth instance down.
func (a *app) shutDown(ctx context.Context, n int) <-chan error {
	in := a.instances[n]
	ended := make(chan error, 1)
	go func() { ended <- in.shutdown(ctx) }()
	return ended
}

func TestShutdown_waitsForJobsAndTakesNoMore(t *testing.T) { // House
	onEach(t, func(t *testing.T, open opener) {
		a := start(t, open, 2, time.Minute)
		r := a.ask(0, "report")
		a.requireAccepted(r)
		await(t, a.work.began)
		ended := a.shutDown(t.Context(), 0)
		require.Eventually(t, func() bool { return a.ask(0, "broken").Code == http.StatusServiceUnavailable }, 20*time.Second, 5*time.Millisecond)
		require.Equal(t, http.StatusConflict, a.ask(1, "report").Code, "it is still at it")
		shown, err := a.send(t.Context(), http.MethodGet, r.Where)
		require.NoError(t, err)
		require.Equal(t, running, shown.State)
		require.Empty(t, ended)
		a.work.finish <- nil
		require.NoError(t, await(t, ended))
		last, _ := a.instances[0].runs.last("report")
		require.Equal(t, done, last.State)
		a.requireAccepted(a.ask(1, "report"))
		a.requireAccepted(a.ask(1, "broken")) // what was refused there left nothing taken
	})
}

func TestShutdown_stopsJobsWhenItsTimeIsOver(t *testing.T) { // House
	onEach(t, func(t *testing.T, open opener) {
		a := start(t, open, 2, time.Minute)
		a.requireAccepted(a.ask(0, "report"))
		await(t, a.work.began)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, await(t, a.shutDown(over, 0)))
		require.ErrorIs(t, await(t, a.work.cut), errShutdown)
		last, _ := a.instances[0].runs.last("report")
		require.Equal(t, stopped, last.State)
		a.requireAccepted(a.ask(1, "report")) // at once, and not after the minute of the lease
	})
}
