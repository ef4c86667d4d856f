package pglock

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestSessionName_tellsTheTTL(t *testing.T) { // G3
	for _, ttl := range []time.Duration{
		minSessionTTL, time.Second, 1500 * time.Millisecond, 30 * time.Second, time.Hour, locker.MaxTTL,
	} {
		for _, application := range []string{
			"", "app", "a (b) [c]", "[locker 5s]", "nightly [locker 5s] job", strings.Repeat("x", 63), strings.Repeat("é", 31) + "x", strings.Repeat("日", 21),
		} {
			name := sessionName(application, ttl)
			require.LessOrEqual(t, len(name), maxName, name)
			require.True(t, utf8.ValidString(name), name)
			require.Equal(t, ttl, sessionTTL(name), name)
			if len(application) <= 40 {
				require.True(t, strings.HasPrefix(name, application), name)
			}
		}
	}
}

func TestSessionTTL_isNotThatOfOthers(t *testing.T) {
	for _, name := range []string{
		"", "psql", "[locker]", "[locker ]", "[locker 30]", "[locker 30s", "[locker 30s] x", "x[locker 30s]", "[locker -30s]", "[locker 0s]", "[locker 99999999h]", "[locker listens]",
	} {
		require.Zero(t, sessionTTL(name), name)
	}
}

// A name that is cut is cut between characters: the server would show something else.
func TestMarked_cutsLongNamesBetweenCharacters(t *testing.T) {
	for n := range 40 {
		name := marked(strings.Repeat("x", n)+strings.Repeat("日", 30), "[locker listens]")
		require.True(t, utf8.ValidString(name), name)
		require.LessOrEqual(t, len(name), maxName)
		require.Greater(t, len(name), maxName-utf8.UTFMax)
		require.True(t, strings.HasSuffix(name, "日 [locker listens]"), name)
	}
}

func TestHolder_isReadAsItWasWritten(t *testing.T) { // G3, R1
	for _, application := range []string{"", "app", "a (b)", "(", ")", ") (", "pid 7 (x)", "日本 [locker 30s]"} {
		h := sessionHolding("4711", application, 0)
		pid, read, ok := parseHolder(h.Holder)
		require.True(t, ok, h.Holder)
		require.Equal(t, 4711, pid)
		require.Equal(t, application, read)
	}
	require.Equal(t, "pid 4711", sessionHolding("4711", "", 0).Holder)
	require.Equal(t, "pid 4711 (app [locker 30s])", sessionHolding("4711", sessionName("app", 30*time.Second), 0).Holder)
	for _, holder := range []string{
		"", "pid", "pid ", "pid 0", "pid 07", "pid -1", "pid x", "pid 1 ", "pid 1 (", "pid 1 )", " pid 1", "pid 1 (a) b", "pid 99999999999999999999", "4711",
	} {
		_, _, ok := parseHolder(holder)
		require.False(t, ok, holder)
	}
}

func TestHolding_tellsWhatIsLeftWhereItIsKnown(t *testing.T) { // G5
	name := sessionName("app", 30*time.Second)
	require.Equal(t, 30*time.Second, sessionHolding("1", name, 0).Remaining)
	require.Equal(t, 20*time.Second, sessionHolding("1", name, 10*time.Second).Remaining)
	require.Equal(t, time.Nanosecond, sessionHolding("1", name, time.Minute).Remaining, "still held")
	require.Zero(t, sessionHolding("1", name, -1).Remaining, "not known")
	require.Zero(t, sessionHolding("1", "psql", time.Second).Remaining, "without end")
}
