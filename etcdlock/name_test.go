package etcdlock

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestName_ofTwoKeysNoneIsAnEntryOfTheOther(t *testing.T) { // K1
	b := &backend{prefix: "p/"}
	keys := []string{"a", "a/b", "a/", "/", "a%2Fb", "a%b", "%", "%25", "%2F", "%!lease", "%!lease/1", "{a}", "a}b", "é", "a b"}
	for _, k := range keys {
		require.True(t, strings.HasPrefix(b.line(k), "p/"))
		require.NotContains(t, strings.TrimSuffix(strings.TrimPrefix(b.line(k), "p/"), "/"), "/")
		got, id, ok := b.keyOf(b.line(k) + "owner")
		require.True(t, ok)
		require.Equal(t, k, got)
		require.Equal(t, "owner", id)
		for _, other := range keys {
			if other != k {
				require.False(t, strings.HasPrefix(b.line(other), b.line(k)), "%s in the line of %s", other, k)
			}
		}
	}
	require.Equal(t, "p/plain", Name("p/", "plain"))
	for _, name := range []string{b.sentinel(7), "p/plain", "other/k/o"} {
		_, _, ok := b.keyOf(name)
		require.Equal(t, name == "other/k/o", ok, name) // who asks has asked for the prefix
	}
}
