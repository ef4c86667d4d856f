package testenv

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// answerTimeout is what a server gets for an answer in a series of attempts: one of
// them may be paused.
const answerTimeout = 500 * time.Millisecond

// ask sends commands to the server over a client that lives as long as the call.
func (r *Redis) ask(ctx context.Context, commands func(*redis.Client) error) error {
	opts, err := r.options(ctx)
	if err != nil {
		return err
	}
	c := redis.NewClient(opts)
	return errors.Join(commands(c), c.Close())
}

// options are those of a client that sends what it is told to, once, and no longer
// than ctx allows. A server that cannot be reached is an error here already: go-redis
// prints a line for each of its own connects that fail.
func (r *Redis) options(ctx context.Context) (*redis.Options, error) {
	opts, err := redis.ParseURL(r.url)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, "tcp", r.addr)
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	opts.MaxRetries = -1
	opts.DialerRetries = 1
	opts.ContextTimeoutEnabled = true
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opts, nil
}

// send sends one command, whose answer tells nothing but success.
func (r *Redis) send(ctx context.Context, command ...any) error {
	return r.ask(ctx, func(c *redis.Client) error { return c.Do(ctx, command...).Err() })
}

// fields reads an answer such as that to INFO.
func fields(text string) map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

func ping(ctx context.Context, network, addr string) error {
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A deadline in the past ends the exchange when ctx does.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if strings.HasPrefix(answer, "-LOADING") {
		return errors.New(strings.TrimSpace(answer[1:]))
	}
	return nil
}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}
