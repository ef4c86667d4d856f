package pglock

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-locker/locker"
)

//go:embed row_insert.sql
var rowInsertSQL string

//go:embed row_take.sql
var rowTakeSQL string

//go:embed row_claim.sql
var rowClaimSQL string

//go:embed row_who.sql
var rowWhoSQL string

//go:embed row_end.sql
var rowEndSQL string

// RowConfig configures a Locker on row locks. A nil *RowConfig stands for the defaults.
type RowConfig struct {
	locker.Config

	// Table is the table whose rows are locked, as in LeaseConfig.Table. Nil: locker_row.
	Table pgx.Identifier

	// Sequence, Create and ClockToken are as in Config; Create makes the table too.
	Sequence   pgx.Identifier
	Create     bool
	ClockToken bool

	// RestartGrace is as in Config.
	RestartGrace time.Duration
}

// NewRow returns a Locker that locks rows of a table by SELECT FOR UPDATE, each in a
// transaction that stays open while the lock is held, on a session of its own. The
// sessions are made with the settings of pool, which also serves to look at locks for
// operators, and never closed. It blocks for a few requests, until ctx ends. Bad settings
// are locker.ErrInvalid, before anything is sent.
func NewRow(ctx context.Context, pool *pgxpool.Pool, cfg *RowConfig) (locker.Locker, error) {
	return newRowLocker(ctx, pool, cfg, nil)
}

func newRowLocker(ctx context.Context, pool *pgxpool.Pool, cfg *RowConfig, owned func()) (locker.Locker, error) {
	if cfg == nil {
		cfg = &RowConfig{}
	}
	b, err := newRow(ctx, pool, cfg)
	if err != nil {
		return nil, err
	}
	b.owned = owned
	return withBackend(b, &cfg.Config)
}

// NewRowBackend returns the Backend of NewRow, for wrapping it. It makes no use of the
// embedded locker.Config.
func NewRowBackend(ctx context.Context, pool *pgxpool.Pool, cfg *RowConfig) (locker.Backend, error) {
	if cfg == nil {
		cfg = &RowConfig{}
	}
	b, err := newRow(ctx, pool, cfg)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// row implements locker.Backend by row locks.
type row struct {
	*solos
	pool  *pgxpool.Pool
	clock bool
	owned func() // closes the pool, if Open made it

	insert, take, queue, mint, whoHas command
	endSQL                            string
}

var (
	_ locker.Backend    = (*row)(nil)
	_ locker.Queuer     = (*row)(nil)
	_ locker.LossPusher = (*row)(nil)
	_ locker.Inspector  = (*row)(nil)
	_ locker.Closer     = (*row)(nil)
)

var (
	cmdBegin    = command{name: "begin", sql: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"}
	cmdRollback = command{name: "rollback", sql: "ROLLBACK"}
	cmdClaim    = command{name: "claim", sql: text(rowClaimSQL)}

	// A crash that takes the commit back has ended the lock too: nobody needs to wait
	// for the disk.
	cmdHasten = command{name: "hasten", sql: "SET LOCAL synchronous_commit = off"}
	cmdCommit = command{name: "commit", sql: "COMMIT"}
)

func newRow(ctx context.Context, pool *pgxpool.Pool, cfg *RowConfig) (*row, error) {
	if pool == nil {
		return nil, invalidf("no Postgres pool")
	}
	grace, err := restartGrace(cfg.RestartGrace, cfg.TTL)
	if err != nil {
		return nil, err
	}
	table, err := nameOr("Table", cfg.Table, "locker_row")
	if err != nil {
		return nil, err
	}
	sequence, err := nameOr("Sequence", cfg.Sequence, "locker_token")
	if err != nil {
		return nil, err
	}
	c := newConnector(pool, grace)
	ss := newSolos(c)
	token, err := c.tokens(ctx, sequence, cfg.ClockToken, cfg.Create, rowTable(table))
	if err != nil {
		return nil, err
	}
	s, err := ss.borrow(ctx) // is there for the first lock
	if err != nil {
		return nil, errors.Join(err, ss.close(ctx))
	}
	ss.giveBack(s)
	sql := func(file string) string { return statement(file, "locker_row", table) }
	return &row{
		solos: ss, pool: pool, clock: cfg.ClockToken,
		insert: command{name: "insert", sql: sql(rowInsertSQL)},
		take:   command{name: "take", sql: sql(rowTakeSQL)},
		queue:  command{name: "queue", sql: sql(strings.Replace(rowTakeSQL, " NOWAIT", "", 1))},
		mint:   command{name: "mint", sql: "SELECT " + token},
		whoHas: command{name: "who", sql: sql(rowWhoSQL)},
		endSQL: sql(rowEndSQL),
	}, nil
}

// Info implements locker.Backend.
func (b *row) Info() locker.Info {
	can := locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapSessionHolder | locker.CapWakeUp |
		locker.CapFIFO | locker.CapPushLoss | locker.CapExpiry | locker.CapInspect | locker.CapSessionPerLock
	if b.clock {
		can |= locker.CapClockToken
	}
	return locker.Info{
		Name: "postgres row", Can: can, Unit: time.Millisecond, MinTTL: minSessionTTL,
		Deadlines: true,
	}
}

// OnLoss implements locker.LossPusher.
func (b *row) OnLoss(report func(key, owner string, err error)) { b.report = report }

// TryAcquire implements locker.Backend.
func (b *row) TryAcquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	for {
		g, err := b.try(ctx, req)
		if !errors.Is(err, errDeleted) && !errors.Is(err, errStranded) {
			return g, err
		}
	}
}

// insertBound is how long an attempt waits for a transaction that has made or deleted the
// row. One of ours is over by then; another one has the key.
const insertBound = 100 * time.Millisecond

// errDeleted: the row was there, and then it was not.
var errDeleted = errors.New("pglock: the row was deleted")

func (b *row) try(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if req.Mode != locker.ModeExclusive {
		return nil, locker.ErrUnsupported
	}
	s, err := b.borrow(ctx)
	if err != nil {
		return nil, err
	}
	g := b.grant(s, req)
	if err := b.connector.young(s.wire); err != nil {
		b.giveBack(s)
		return nil, err
	}
	g.since = time.Now()
	g.taking = newCallWith(&b.take, slices.Concat([]string{req.Key}, silence(req.TTL, sessionName(b.connector.application(), req.TTL)))...)
	b.hold(s, g)
	spared := s.spared
	insert := newCallWith(&b.insert, req.Key, milliseconds(insertBound))
	s.start(insert, newCallWith(&cmdBegin), g.taking)
	answered, err := b.await(ctx, s, spared, g.taking)
	switch {
	case err != nil:
		return nil, err
	case !answered:
		return g, ctx.Err()
	}
	if err = g.taking.err; err == nil && len(g.taking.rows) > 0 {
		return b.minted(ctx, g)
	}
	if err == nil {
		err = insert.err // there is no row because it could not be made
	}
	if ended := s.ended(); ended != nil {
		if s.over() || errors.Is(g.taking.err, errNotSent) {
			return nil, locker.NoEffect(failed(ended))
		}
		return g, failed(ended) // the undo takes as long as the server is not there
	}
	// Nothing was taken: the transaction has failed, or is empty.
	if err := g.Release(ctx); err != nil && s.ended() == nil {
		s.close()
	}
	switch {
	case hasCode(err, "55P03"):
		return nil, b.refusal(ctx, req.Key)
	case err == nil:
		return nil, errDeleted
	}
	return nil, locker.NoEffect(failed(err))
}

func (b *row) grant(s *solo, req locker.Request) *soloGrant {
	return &soloGrant{
		ss: b.solos, s: s, sessionGrant: sessionGrant{w: s.wire, key: req.Key, owner: req.Owner, ttl: req.TTL},
		give: func() []*call { return []*call{newCallWith(&cmdHasten), newCallWith(&cmdCommit)} },
		drop: func() []*call { return []*call{newCallWith(&cmdRollback)} },
	}
}

// silence are the arguments of row_take.sql and row_claim.sql for a session that may be
// silent for so long.
func silence(d time.Duration, name ...string) []string {
	args := append([]string{milliseconds(d)}, name...)
	for _, s := range vanish(d) {
		args = append(args, s.value)
	}
	return args
}

// minted gives the grant its token. It comes from another session, in a transaction of its
// own: that of the lock ends with it, and a crash would take the token back with it.
func (b *row) minted(ctx context.Context, g *soloGrant) (locker.Grant, error) {
	c, err := b.ask(ctx, func() *call { return newCallWith(&b.mint) })
	if err != nil {
		return g, failed(err)
	}
	return g, g.mint(c)
}

// refusal is the error for a key whose row somebody has locked.
func (b *row) refusal(ctx context.Context, key string) error {
	held := new(locker.HeldError)
	c, err := b.ask(ctx, func() *call { return newCallWith(&b.whoHas, key) })
	if err == nil && len(c.rows) > 0 {
		held.Holder, held.Remaining = holderOf(c.rows[0][1:])
	}
	return held
}

// Enqueue implements locker.Queuer: the server keeps the line of those who wait for a row.
// The wait takes a session, and ends with it.
func (b *row) Enqueue(ctx context.Context, req locker.Request) (locker.Place, error) {
	s, err := b.borrow(ctx)
	if err != nil {
		return nil, err
	}
	g := b.grant(s, req)
	if err := b.connector.young(s.wire); err != nil {
		b.giveBack(s)
		return nil, err
	}
	name := sessionName(b.connector.application(), req.TTL)
	return b.enqueue(&place{
		g: g,
		wait: func() []*call {
			return []*call{
				newCallWith(&b.insert, req.Key, "0"), newCallWith(&cmdBegin),
				newCallWith(&b.queue, slices.Concat([]string{req.Key}, silence(reservation, name))...),
			}
		},
		again: func() []*call { return []*call{newCallWith(&cmdRollback)} },
		claim: func(ctx context.Context) (locker.Grant, error) {
			if err := s.do(ctx, newCallWith(&cmdClaim, silence(req.TTL)...)); err != nil {
				return g, failed(err)
			}
			return b.minted(ctx, g)
		},
		refusal: func(ctx context.Context) error { return b.refusal(ctx, req.Key) },
	}), nil
}

// Inspect implements locker.Inspector.
func (b *row) Inspect(ctx context.Context, key string) (h locker.Holding, err error) {
	err = b.who(ctx, func(_ string, found locker.Holding) bool {
		h = found
		return true
	}, key)
	return h, err
}

// List implements locker.Inspector.
func (b *row) List(ctx context.Context, yield func(key string, h locker.Holding) bool) error {
	return b.who(ctx, yield, nil)
}

func (b *row) who(ctx context.Context, yield func(key string, h locker.Holding) bool, key any) error {
	return each(ctx, b.pool, func(r [][]byte) bool { return yield(string(r[0]), *holdingOf(r[1:])) }, b.whoHas.sql, key)
}

// ForceRelease implements locker.Inspector. It ends the session that has locked the row.
func (b *row) ForceRelease(ctx context.Context, key, holder string) (done bool, err error) {
	pid, application, ok := parseHolder(holder)
	if !ok {
		return false, nil
	}
	err = each(ctx, b.pool, func(row [][]byte) bool {
		done = isTrue(row)
		return true
	}, b.endSQL, key, pid, application)
	return done, err
}

// Close implements locker.Closer.
func (b *row) Close(ctx context.Context) error {
	return errors.Join(b.solos.close(ctx), closeOwned(ctx, b.owned))
}
