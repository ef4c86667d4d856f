package conformance_test

import (
	"context"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-locker/locker"
	"github.com/go-locker/locker/conformance"
	"github.com/go-locker/locker/etcdlock"
	"github.com/go-locker/locker/internal/testenv"
	"github.com/go-locker/locker/memlock"
	"github.com/go-locker/locker/pglock"
	"github.com/go-locker/locker/redislock"
)

// backends are the Backends of this module, and what each has to declare at least. Only
// those of Postgres ask a server before they exist.
func backends(t *testing.T) map[string]struct {
	locker.Backend
	must locker.Capability
} {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	t.Cleanup(func() { _ = rdb.Close() })
	red, err := redislock.NewBackend(rdb, nil)
	require.NoError(t, err)
	cluster, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:0"}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cluster.Close() })
	etcd, err := etcdlock.NewBackend(cluster, nil)
	require.NoError(t, err)
	srv, err := testenv.AnyPostgres(t.Context())
	if testenv.Skippable(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop()) })
	database, err := srv.NewDatabase(t.Context())
	require.NoError(t, err)
	pool, err := pgxpool.New(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	postgres := func(b locker.Backend, err error) locker.Backend {
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.(locker.Closer).Close(context.Background())) })
		return b
	}
	advisory := postgres(pglock.NewBackend(t.Context(), pool, &pglock.Config{Create: true}))
	lease := postgres(pglock.NewLeaseBackend(t.Context(), pool, &pglock.LeaseConfig{Create: true, Listen: pool}))
	row := postgres(pglock.NewRowBackend(t.Context(), pool, &pglock.RowConfig{Create: true}))
	return map[string]struct {
		locker.Backend
		must locker.Capability
	}{
		"memory": {memlock.NewBackend(nil), locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapWakeUp |
			locker.CapFIFO | locker.CapPushLoss | locker.CapExtend | locker.CapExpiry | locker.CapInspect},
		"redis": {red, locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapWakeUp |
			locker.CapExtend | locker.CapExpiry | locker.CapInterop},
		"postgres advisory": {advisory, locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapPushLoss |
			locker.CapWakeUp | locker.CapInterop | locker.CapExpiry},
		"postgres lease": {lease, locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapWakeUp |
			locker.CapExtend | locker.CapExpiry},
		"etcd": {etcd, locker.CapExclusive | locker.CapToken | locker.CapHolder | locker.CapPushLoss | locker.CapWakeUp |
			locker.CapFIFO | locker.CapInterop | locker.CapExpiry},
		"postgres row": {row, locker.CapExclusive | locker.CapToken | locker.CapPushLoss | locker.CapWakeUp},
	}
}

// A case whose capability is not declared is skipped. So the suite is worth what a
// backend declares.
func TestBackends_declareWhatTheyHaveTo(t *testing.T) {
	for name, b := range backends(t) {
		require.Equal(t, name, b.Info().Name)
		missing := b.must &^ b.Info().Can
		require.Zero(t, missing, "%s does not declare: %s", name, missing)
	}
}

func TestContractPage_isUpToDate(t *testing.T) {
	type rule struct {
		ID, Text string
		Cases    []conformance.Case
	}
	type section struct {
		Title string
		Rules []*rule
	}
	type failure struct {
		ID, Text string
		Cases    []string
	}
	titles := map[string]string{
		"G": "Grant", "H": "Hold", "R": "Release", "W": "Wait", "K": "Keys and durations", "House": "House",
	}
	var data struct {
		Sections []*section
		Failures []failure
	}
	citedBy := make(map[string][]string)
	byText := make(map[string]*rule)
	for _, c := range conformance.Cases() {
		id, _, _ := strings.Cut(c.ID, "/")
		title := titles[strings.TrimRight(id, "0123456789")]
		require.NotEmpty(t, title, c.ID)
		if n := len(data.Sections); n == 0 || data.Sections[n-1].Title != title {
			data.Sections = append(data.Sections, &section{Title: title})
		}
		s := data.Sections[len(data.Sections)-1]
		r := byText[c.Rule]
		if r == nil {
			r = &rule{ID: id, Text: c.Rule}
			byText[c.Rule] = r
			s.Rules = append(s.Rules, r)
		}
		r.Cases = append(r.Cases, c)
		for _, cite := range c.Cites {
			citedBy[cite] = append(citedBy[cite], c.ID)
		}
	}
	for _, s := range data.Sections { // what needs a fault stands beside what does not
		slices.SortStableFunc(s.Rules, func(a, b *rule) int { return strings.Compare(a.ID, b.ID) })
	}
	lines := failureLines(t)
	quoted := quotedFailures(t)
	for _, id := range slices.SortedFunc(maps.Keys(quoted), byNumber) {
		require.NotEmpty(t, lines[id], "%s quotes %s: testdata/failures.txt has to say in a line what goes wrong", quoted[id], id)
		data.Failures = append(data.Failures, failure{ID: id, Text: lines[id], Cases: citedBy[id]})
	}

	bs := backends(t)
	tmpl, err := template.New("contract.md.tmpl").Funcs(template.FuncMap{
		"join": strings.Join,
		"caps": func(name string) string { return bs[name].Info().Can.String() },
		"needs": func(c conformance.Case) string {
			needs := c.Uses.Strings()
			if c.Needs != 0 {
				needs = slices.Insert(needs, 0, c.Needs.String())
			}
			if c.Except != 0 {
				needs = append(needs, "no "+c.Except.String())
			}
			return strings.Join(needs, ", ")
		},
	}).ParseFiles("testdata/contract.md.tmpl")
	require.NoError(t, err)
	var page strings.Builder
	require.NoError(t, tmpl.Execute(&page, data))
	golden(t, "../docs/contract.md", page.String())
}

func byNumber(a, b string) int {
	x, _ := strconv.Atoi(a[1:])
	y, _ := strconv.Atoi(b[1:])
	return x - y
}

// failureLines returns what goes wrong, by the failure's id.
func failureLines(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/failures.txt")
	require.NoError(t, err)
	lines := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		id, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		require.Empty(t, lines[id], "%s twice", id)
		lines[id] = what
	}
	return lines
}

// quotedFailures finds the ids in the comments and strings of all Go files, and
// for each a file that has it.
func quotedFailures(t *testing.T) map[string]string {
	t.Helper()
	id := regexp.MustCompile(`\bC\d{2,3}\b`)
	quoted := make(map[string]string)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && d.Name()[0] == '.':
			return filepath.SkipDir // tools, not code
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var s scanner.Scanner
		file := token.NewFileSet().AddFile(path, -1, len(src))
		s.Init(file, src, nil, scanner.ScanComments)
		for {
			_, tok, lit := s.Scan()
			if tok == token.EOF {
				return nil
			}
			if tok == token.COMMENT || tok == token.STRING {
				for _, c := range id.FindAllString(lit, -1) {
					quoted[c] = path
				}
			}
		}
	})
	require.NoError(t, err)
	return quoted
}
