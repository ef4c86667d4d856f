//go:build unix

package testenv

import (
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRedis_aUserMayDoWhatItsRulesSay(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	const password = "p@ss/w:rd %"
	raw, err := r.AddUser(within(t), "app", password, "~app:*", "+get", "+set")
	require.NoError(t, err)
	u, err := url.Parse(raw)
	require.NoError(t, err)
	assert.Equal(t, r.Addr(), u.Host)
	opts, err := redis.ParseURL(raw)
	require.NoError(t, err)
	app := redis.NewClient(opts)
	defer app.Close()
	require.NoError(t, app.Set(within(t), "app:k", 1, 0).Err())
	require.ErrorContains(t, app.Set(within(t), "k", 1, 0).Err(), "NOPERM")
	require.ErrorContains(t, app.Del(within(t), "app:k").Err(), "NOPERM")
	assert.Equal(t, "+OK", do(t, r, "SET k 1"), "the default user is not what it was")

	_, err = r.AddUser(within(t), "app", password, "~*", "+del")
	require.NoError(t, err)
	require.ErrorContains(t, app.Get(within(t), "app:k").Err(), "NOPERM", "a rule that was not repeated holds")

	_, err = r.AddUser(within(t), "app", password, "no such rule")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), password)
}

func TestRedis_takesSettingsWhileItRuns(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	require.NoError(t, r.ConfigSet(within(t), "maxmemory", "1"))
	assert.Contains(t, do(t, r, "SET k 1"), "-OOM")
	require.NoError(t, r.ConfigSet(within(t), "maxmemory", "0"))
	assert.Equal(t, "+OK", do(t, r, "SET k 1"))
	require.Error(t, r.ConfigSet(within(t), "no-such-setting", "1"))
}
