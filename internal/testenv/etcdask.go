package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Ping is nil if the server answers, be it out of space, or without its cluster's
// majority. It blocks until the answer or ctx's end.
func (e *Etcd) Ping(ctx context.Context) error {
	_, err := e.ask(ctx, "/health?serializable=true&exclude=NOSPACE&exclude=CORRUPT", "")
	return err
}

// current is nil if the server knows all that its cluster's majority does.
func (e *Etcd) current(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := e.ask(ctx, "/health?exclude=NOSPACE&exclude=CORRUPT", "")
	return err
}

// etcdStatus is what a server says about the leader. An id is empty if there is none.
type etcdStatus struct {
	Header struct {
		Me string `json:"member_id"`
	}
	Leader string
	Term   string `json:"raftTerm"`
}

func (e *Etcd) status(ctx context.Context) (etcdStatus, error) {
	var s etcdStatus
	answer, err := e.ask(ctx, "/v3/maintenance/status", "{}")
	if err == nil {
		err = json.Unmarshal(answer, &s)
	}
	return s, err
}

// ask gets what is at a path, or posts JSON there if it is not empty, over a connection that
// lives as long as the call, and returns the answer's body.
func (e *Etcd) ask(ctx context.Context, path, json string) ([]byte, error) {
	method := http.MethodGet
	if json != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+e.addr+path, strings.NewReader(json))
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd %s: %s: %s", e.addr, answer.Status, body)
	}
	return body, err
}
