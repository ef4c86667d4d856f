package redislock

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/go-locker/locker"
)

// permanentCodes are the first words of server errors that waiting does not cure.
var permanentCodes = []string{
	"NOPERM",    // the ACL does not allow the command, the key or the channel
	"NOAUTH",    // the client has no credentials
	"WRONGPASS", // or wrong ones
	"DENIED",    // protected mode: the server takes local clients only
	"WRONGTYPE", // the key, or the token counter, is not a string
	"CROSSSLOT", // a cluster in spite of names that share a slot: a proxy
	"NOPROTO",   // the client speaks a protocol that the server lacks
}

// permanentTexts are parts of server errors with the code ERR that waiting does
// not cure. ERR is also what a server says when it is merely overloaded, so all
// others count as passing.
var permanentTexts = []string{
	"unknown command",                  // renamed away, or a server without scripts
	"unknown redis command",            // the same from inside a script
	"wrong number of arguments",        // a server that only looks like Redis
	"the user executing the script",    // NOPERM from inside a script
	"this redis command is not",        // not allowed from scripts
	"error compiling script",           // a server with another Lua
	"db index is out of range",         // the client's DB
	"select is not allowed in cluster", // the client's DB on a cluster
	"auth <password> called without",   // a password where none is set
	"the lease must be at least",       // our scripts' own check
}

// isPermanent reports whether waiting does not cure err. What is not listed
// passes: LOADING, BUSY, TRYAGAIN, CLUSTERDOWN, MASTERDOWN, READONLY (a failover
// under way), NOREPLICAS, MISCONF, OOM, too many clients, and all trouble with
// connections.
func (b *backend) isPermanent(err error) bool {
	if errors.Is(err, redis.ErrClosed) {
		return true // a closed client does not open again
	}
	if isUntrusted(err) {
		return true
	}
	text, ok := serverError(err)
	if !ok {
		return false
	}
	code, _, _ := strings.Cut(text, " ")
	if slices.Contains(permanentCodes, code) {
		return true
	}
	if code == "MOVED" {
		// A ClusterClient follows it; a client for one server never gets there.
		return b.cluster == nil
	}
	text = strings.ToLower(text)
	for _, t := range permanentTexts {
		if strings.Contains(text, t) {
			return true
		}
	}
	return false
}

// failed is how every error of the driver leaves the backend: marked if waiting
// does not cure it, or if the server certainly did nothing.
func (b *backend) failed(err error) error {
	if err == nil {
		return nil
	}
	if b.isPermanent(err) {
		return locker.Permanent(err)
	}
	if _, answered := serverError(err); !answered {
		b.examiner.unanswered()
	}
	b.lookForMasters(err)
	if !mayHaveRun(err) {
		return locker.NoEffect(err)
	}
	return err
}

// serverError returns the text of an error that the server replied with.
func serverError(err error) (text string, ok bool) {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return "", false
	}
	return reply.Error(), true
}

func isCrossSlot(err error) bool { return redis.HasErrorPrefix(err, "CROSSSLOT") }

// mayHaveRun reports whether the server may have run a command that was sent once
// and failed with err. In doubt it may.
func mayHaveRun(err error) bool {
	if _, ok := serverError(err); ok {
		return false // it answered, and our scripts change nothing before they fail
	}
	for _, unsent := range []error{redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted} {
		if errors.Is(err, unsent) {
			return false
		}
	}
	if isUntrusted(err) {
		return false // commands come after the handshake
	}
	var op *net.OpError
	return !(errors.As(err, &op) && op.Op == "dial")
}

// isUntrusted reports that the server's certificate was refused.
func isUntrusted(err error) bool {
	var untrusted *tls.CertificateVerificationError
	return errors.As(err, &untrusted)
}
