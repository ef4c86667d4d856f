package pglock

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArray_isReadByTheServer(t *testing.T) {
	pool := connect(t, newDatabase(t))
	for _, numbers := range [][]int64{{}, {7}, someNumbers()} {
		require.Equal(t, numbers, value[[]int64](t, pool, "SELECT '"+string(array(numbers))+"'::bigint[]"))
	}
}

func TestLiteral_isReadByTheServer(t *testing.T) {
	database := newDatabase(t)
	for _, conforming := range []string{"on", "off"} {
		pool := connect(t, withParam(t, database, "standard_conforming_strings", conforming))
		for _, text := range []string{"", "a", "it's", `''`, `\`, `\'`, `a\nb`, `'; DROP TABLE x; --`, "日本", `"`, "$1", "a\nb"} {
			results, err := pool.Exec(t.Context(), "SELECT 1 WHERE "+literal(text)+" = $1::text", text)
			require.NoError(t, err, "%q", text)
			require.Equal(t, int64(1), results.RowsAffected(), "%q with standard_conforming_strings %s", text, conforming)
		}
	}
}
