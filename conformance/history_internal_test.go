package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-locker/locker"
)

// The end of a session is heard of within 50 ms in which nothing is broken; every other
// overlap of claims is one too many.
func TestHistory_allowsASessionsEndItsTime(t *testing.T) { // G1, H5
	const ms = time.Millisecond
	for _, c := range []struct {
		session        bool
		pushes         bool
		overlap        time.Duration
		stops, outages []span
		ok             bool
	}{
		{session: true, pushes: true, overlap: 40 * ms, ok: true},
		{session: true, pushes: true, overlap: 60 * ms},
		{session: false, pushes: true, overlap: 1 * ms},
		{session: true, pushes: false, overlap: 1 * ms},
		{session: true, pushes: true, overlap: 150 * ms, outages: []span{{1, 870 * ms, 980 * ms}}, ok: true},
		{session: true, pushes: true, overlap: 160 * ms, stops: []span{{1, 870 * ms, 960 * ms}, {0, 970 * ms, 1200 * ms}}, ok: true},
		{session: true, pushes: true, overlap: 150 * ms, outages: []span{{2, 870 * ms, 980 * ms}}},
		{session: true, pushes: true, overlap: 170 * ms, outages: []span{{1, 870 * ms, 980 * ms}}},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			a := newArchive()
			lost := 1000 * ms
			a.take(note{Process: 1, Attempt: 1, What: noteGot, At: 100 * ms, Key: "k", Token: 1, Deadline: 2000 * ms})
			a.take(note{Process: 1, Attempt: 1, What: noteLost, At: lost, Key: "k", Session: c.session, Deadline: 2000 * ms})
			a.take(note{Process: 2, Attempt: 1, What: noteGot, At: lost - c.overlap, Key: "k", Token: 2, Deadline: 2000 * ms})
			can := locker.CapExclusive | locker.CapToken
			if c.pushes {
				can |= locker.CapPushLoss
			}
			require.Equal(t, c.ok, len(a.check(can, c.stops, c.outages).Violations) == 0)
		})
	}
}
