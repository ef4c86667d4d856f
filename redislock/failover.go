package redislock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// lookPause is the shortest time between two looks for the masters of a cluster that
// errors cause. However many locks there are, they share the looks.
const lookPause = 250 * time.Millisecond

// lookForMasters has the driver ask a cluster again who serves what, if err may be
// the work of a master that is one no longer. By itself the driver does so when it is
// redirected, and the dead redirect nobody. It does not block: the next command, or
// the one after it, goes to the new master. Behind Sentinel it is the driver who hears
// of a new master.
func (b *backend) lookForMasters(err error) {
	if b.cluster == nil {
		return
	}
	if _, answered := serverError(err); answered && !redis.HasErrorPrefix(err, "CLUSTERDOWN") {
		return // alive, and in office; the driver takes care of MOVED and READONLY
	}
	now := time.Since(b.epoch)
	last := b.looked.Load()
	if last == 0 || now-time.Duration(last) >= lookPause {
		if b.looked.CompareAndSwap(last, int64(now)) {
			b.cluster.ReloadState(context.Background())
		}
	}
}
