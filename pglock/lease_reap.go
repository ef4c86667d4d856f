package pglock

import (
	"context"
	_ "embed"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed lease_reap.sql
var leaseReapSQL string

const (
	reapEvery  = time.Minute
	reapAgain  = time.Second // after a pass that found much
	reapBlocks = 64
	reapMuch   = 100 // rows
	reapBound  = 5 * time.Second
)

// reaper deletes rows that nobody needs any more, in passing: a release that finds it due
// starts one statement, which looks at one part of the table, wherever that is. So it costs
// little however large the table is, and needs no index; and the more there is to delete,
// the more often it comes by.
type reaper struct {
	pool    *pgxpool.Pool
	sql     string
	table   string
	end     context.CancelFunc
	ctx     context.Context // until close
	running sync.WaitGroup

	mu   sync.Mutex
	next time.Time // when it is due; zero while it runs, and after close
}

func newReaper(pool *pgxpool.Pool, table pgx.Identifier) *reaper {
	r := &reaper{
		pool: pool, sql: statement(leaseReapSQL, "locker_lease", table), table: table.Sanitize(),
		next: time.Now().Add(reapEvery),
	}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// pass starts a statement if it is due. It does not block.
func (r *reaper) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next.IsZero() || time.Now().Before(r.next) {
		return
	}
	r.next = time.Time{}
	r.running.Go(func() {
		pause := reapEvery
		if r.reap(rand.Float64(), reapBlocks) >= reapMuch {
			pause = reapAgain
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ctx.Err() == nil {
			r.next = time.Now().Add(pause)
		}
	})
}

// reap returns how many rows it has deleted. Where the role must not delete, or there is
// other trouble, they stay: they do no harm.
func (r *reaper) reap(where float64, blocks int) (deleted int64) {
	ctx, cancel := context.WithTimeout(r.ctx, reapBound)
	defer cancel()
	tag, err := r.pool.Exec(ctx, r.sql, pgx.QueryExecModeExec, r.table, where, blocks)
	if err != nil {
		return 0
	}
	return tag.RowsAffected()
}

// close ends what runs, and waits for that, or until ctx ends.
func (r *reaper) close(ctx context.Context) error {
	r.end()
	r.mu.Lock()
	r.next = time.Time{}
	r.mu.Unlock()
	return until(ctx, r.running.Wait, "a statement that deletes rows")
}
