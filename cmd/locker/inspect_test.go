package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

func TestInspect_showsAndBreaksALockOfAnyName(t *testing.T) {
	w := newWorld(t)
	for key, shown := range map[string]string{
		"daily report": "daily report",
		"ключ":         "ключ",
		"a\nb\x1b[2J":  `"a\nb\x1b[2J"`,
		"tab\tquote\"": `"tab\tquote\""`,
		" x":           `" x"`,
		"-force":       "-force",
		"--":           "--",
		"-":            `"-"`,
		"\u202eevil":   `"\u202eevil"`,
	} {
		t.Run(shown, func(t *testing.T) {
			k := w.hold(key, locker.WithLabel(`web1, "blue"`))

			who := w.at("who", "--", key)
			who.requireCode(t, 0)
			assert.Contains(t, who.out, "key:       "+shown+"\n")
			assert.Contains(t, who.out, "holder:    "+k.Owner()+"\n")
			assert.Contains(t, who.out, `label:     "web1, \"blue\""`+"\n")
			assert.Regexp(t, `remaining: (30|29\.\d+)s\n`, who.out)
			assert.Contains(t, who.out, "token:     -\n", "Redis does not show it")

			ls := w.at("ls")
			ls.requireCode(t, 0)
			fields := strings.Split(strings.TrimSuffix(ls.out, "\n"), "\t")
			require.Len(t, fields, 5, ls.out)
			assert.Equal(t, shown, fields[0])
			assert.Equal(t, []string{k.Owner(), `"web1, \"blue\""`}, fields[3:])

			w.at("release", "--", key).requireCode(t, 64, "--force")
			require.NoError(t, k.Err())
			broken := w.at("release", "--force", "--", key)
			broken.requireCode(t, 0)
			assert.Contains(t, broken.out, shown)
			assert.Contains(t, broken.out, k.Owner())
			assert.Contains(t, broken.out, "blue")
			require.ErrorIs(t, k.Release(t.Context()), locker.ErrLost)

			w.at("who", "--", key).requireCode(t, 1, shown+" is free")
			w.at("release", "--force", "--", key).requireCode(t, 1, shown+" is free")
			assert.Empty(t, w.at("ls").out)
		})
	}
}

// A lock of another library is shown too; of its value nothing is known.
func TestInspect_showsForeignLocks(t *testing.T) {
	w := newWorld(t)
	rdb := w.redis()
	require.NoError(t, rdb.Set(t.Context(), "test:theirs", "\x1b]0;title\x07", 0).Err())
	who := w.at("who", "theirs")
	who.requireCode(t, 0)
	assert.Contains(t, who.out, `holder:    "\x1b]0;title\a"`)
	assert.Contains(t, who.out, "remaining: -\n", "it has no end")
	w.at("release", "--force", "theirs").requireCode(t, 0)
	w.at("who", "theirs").requireCode(t, 1)
}

func TestLs_wantsAPrefixOrAll(t *testing.T) {
	w := newWorld(t)
	k := w.hold("k")
	shell(t, w.srv.URL(), `"$L" ls`).requireCode(t, 64, "--all")
	all := shell(t, w.srv.URL(), `"$L" ls --all`)
	all.requireCode(t, 0)
	assert.Contains(t, all.out, "test:k\t")
	assert.Contains(t, all.out, k.Owner())

	for url, shared := range map[string]bool{
		"redis://h/0": true, "rediss://h/0?ttl=3s": true, "redis-cluster://h:1,i:2": true, "redis-sentinel://h/m/0?prefix=": true,
		"redis://h/0?prefix=a:": false, "mem://": false,
	} {
		assert.Equal(t, shared, sharedWithOthers(url), url)
	}
	shell(t, "mem://", `"$L" ls`).requireCode(t, 0)
}

// The holder that was shown is the one that is broken, and nobody else.
func TestRelease_leavesANewHolderAlone(t *testing.T) {
	w := newWorld(t)
	k := w.hold("k")
	var out, errs strings.Builder
	err := newApp(&out, &errs).forceRelease(t.Context(), asStore(w.locker()), "k", locker.Holding{Holder: "the one before"}, false)
	var e *exitError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, exitChanged, e.code)
	assert.Empty(t, out.String())
	require.NoError(t, k.Release(t.Context()), "it was broken")
}
