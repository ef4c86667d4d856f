package pglock

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-locker/locker"
)

// A session of ours tells everybody how long its locks live, because Postgres does not
// show one session's settings to another: its application_name ends in it.

// maxName is the length of a name in Postgres.
const maxName = 63

// sessionName is the application_name of a session whose locks live for ttl.
func sessionName(application string, ttl time.Duration) string {
	return marked(application, fmt.Sprintf("[locker %v]", ttl))
}

// marked puts a mark behind the name of an application, which it may have to shorten.
func marked(application, mark string) string {
	if room := maxName - len(mark) - 1; len(application) > room {
		for room > 0 && !utf8.RuneStart(application[room]) {
			room--
		}
		application = application[:room]
	}
	return strings.TrimPrefix(application+" "+mark, " ")
}

var sessionMark = regexp.MustCompile(`(?:^| )\[locker ([0-9a-zµ.]+)\]$`)

// sessionTTL reads what sessionName has written. Of other sessions it is 0.
func sessionTTL(name string) time.Duration {
	if m := sessionMark.FindStringSubmatch(name); m != nil {
		if ttl, err := time.ParseDuration(m[1]); err == nil && ttl > 0 {
			return ttl
		}
	}
	return 0
}

// sessionHolding is what is shown of a session that holds a lock. idle is how long it has been
// silent; negative if that is not known.
func sessionHolding(pid, application string, idle time.Duration) locker.Holding {
	h := locker.Holding{Holder: "pid " + pid}
	if application != "" {
		h.Holder += " (" + application + ")"
	}
	if ttl := sessionTTL(application); ttl > 0 && idle >= 0 {
		h.Remaining = max(ttl-idle, time.Nanosecond)
	}
	return h
}

var holderForm = regexp.MustCompile(`^pid ([1-9][0-9]*)(?: \((.*)\))?$`)

// parseHolder reads what sessionHolding has written.
func parseHolder(holder string) (pid int, application string, ok bool) {
	m := holderForm.FindStringSubmatch(holder)
	if m == nil {
		return 0, "", false
	}
	pid, err := strconv.Atoi(m[1])
	return pid, m[2], err == nil
}
