package pglock

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Other programs compute them too.
func TestKey_doesNotChange(t *testing.T) { // K1, C74, C75
	for _, tc := range []struct {
		namespace, key string
		want           int64
	}{
		{"", "a", -5362209633731605611},
		{"", "a/b", 138464541352925601},
		{"app", "a", 320697036128342418},
		{"locker_lease", "k", 9035187753811028968},
		{"", "Zürich/№1", -8971087524908157253},
		{"日本", "鍵", -5138806082410193569},
		{"", strings.Repeat("x", 512), 6470556624316083761},
		{strings.Repeat("n", 512), "k", -4768398040211765789},
	} {
		require.Equal(t, tc.want, Key(tc.namespace, tc.key), "%q, %q", tc.namespace, tc.key)
	}
}

// Where the one ends and the other begins, no legal byte can be.
func TestKey_keepsNamespaceAndKeyApart(t *testing.T) { // K1, C76
	numbers := make(map[int64][2]string)
	for _, pair := range [][2]string{
		{"", "a"}, {"a", "a"}, {"a", "A"}, {"", "aa"}, {"aa", "a"}, {"a", "aa"}, {"", "a/b"}, {"a", "/b"}, {"a/", "b"},
		{"", "{a}"}, {"", "a}b"}, {"", "{}a"}, {"", "a:fence"}, {"", " a"}, {"", "a "},
		{"", "é"}, {"", "e\u0301"}, // not normalized
	} {
		n := Key(pair[0], pair[1])
		require.Empty(t, numbers[n], "%q", pair)
		numbers[n] = pair
	}
}

func someNumbers() []int64 {
	numbers := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MaxInt32, math.MinInt32, 1 << 31, -1 << 31, 1 << 32, 0xffffffff}
	for range 1000 {
		numbers = append(numbers, int64(rand.Uint64()))
	}
	return numbers
}

// The mark that the SQL files compute is the one that waitMark tells.
func TestWaitMark_isTheServersToo(t *testing.T) { // R3
	pool := connect(t, newDatabase(t))
	const expression = "(n >> 32)::int # 1819239275, (n << 32 >> 32)::int"
	for _, file := range []string{giveSQL, markSQL, unmarkSQL} {
		require.Equal(t, 1, strings.Count(text(file), "("+expression+")"))
	}
	numbers := someNumbers()
	rows, err := pool.Query(t.Context(), "SELECT n, "+expression+" FROM unnest($1::bigint[]) AS n", numbers)
	require.NoError(t, err)
	defer rows.Close()
	i := 0
	for ; rows.Next(); i++ {
		var n int64
		var class, object int32
		require.NoError(t, rows.Scan(&n, &class, &object))
		require.Equal(t, numbers[i], n)
		wantClass, wantObject := waitMark(n)
		require.Equal(t, [2]int32{wantClass, wantObject}, [2]int32{class, object}, n)
	}
	require.NoError(t, rows.Err())
	require.Len(t, numbers, i)
}

// advisory locks show numbers in two halves.
func TestInspector_seesEveryNumber(t *testing.T) {
	pool := connect(t, newDatabase(t), maxConns(2))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, n := range someNumbers()[:20] {
		_, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock($1::bigint)", n)
		require.NoError(t, err)
		i := &inspector{pool: pool, number: func(string) int64 { return n }}
		h, err := i.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.NotEmpty(t, h.Holder, n)
		_, err = conn.Exec(t.Context(), "SELECT pg_advisory_unlock($1::bigint)", n)
		require.NoError(t, err)
		h, err = i.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, h, n)
	}
}
