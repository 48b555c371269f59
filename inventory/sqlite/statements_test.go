package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/require"
)

// Every statement that the tests of this package run is recorded. After the last test, TestMain
// checks the plan of each. It fails for a full scan of a table that grows, and for a statement in
// the source that no test has run. The number of rows does not matter.

// small are the tables that may be scanned: they stay small.
var small = map[string]string{
	"meta":         "a dozen settings",
	"bmc_media":    "one row for each machine that is booted by virtual media now",
	"template":     "written by hand",
	"image":        "written by hand",
	"image_unused": "files that await removal",
	"genesis":      "one row for each lab file",
	"handover":     "one row for each migration of the site",
	"relay":        "bounded by maxRelays",
	"seen":         "bounded by maxSeen",
	"notice":       "bounded by maxNotices and keepNotices",
	"standing":     "machines out of service alone",
	"token":        "bounded by maxTokens",
	"session":      "bounded by maxSessions of each kind and token",
	"operation":    "started by hand: Genesis, Migrate and Recover",
	"json_each":    "what the caller has listed",

	"changed_machine": "of one transaction",
}

// scans are the statements that intentionally scan a growing table, with the reason.
var scans = map[string]string{
	`SELECT doc, started FROM workflow WHERE true( AND .*)? ORDER BY started( DESC)?, run( DESC)? LIMIT \?`: "by an index, and ends at its limit",
	`SELECT m\.name FROM machine m LEFT JOIN workflow w .*`:                                                 "by an index, and ends at its limit",
	`SELECT doc FROM bmc_job WHERE true ORDER BY started DESC, rowid DESC LIMIT \?`:                         "by an index, the newest first, and ends at its limit",
	`WITH ended AS \((.|\s)* ORDER BY started DESC LIMIT \?4\) AS w(.|\s)*`:                                 "the newest runs by an index, up to a limit, and what it has found of them",
	`SELECT w\.run FROM \(.* FROM workflow\) AS w\s.*`:                                                      "once an hour, outside the connection that writes: ranks the runs of each machine",
	`SELECT m\.name AS name, .*\sFROM machine m( LEFT JOIN grant_ .* WHERE true)? ORDER BY m\.name`:         "all machines are asked for",
	`SELECT d\.machine, .* IN \(SELECT name FROM machine\) GROUP BY .*`:                                     "all machines are asked for",
	`SELECT p\.run, .*\sFROM plan p LEFT JOIN workflow w .*`:                                                "once an hour, and when an image loses its file: an open run may have no record yet",
	`UPDATE machine SET version = version \+ 1000000`:                                                       "a restore: all versions jump, once",
	`DELETE FROM grant_`:                                                                                               "a restore: forgets all grants, once",
	`SELECT name FROM machine`:                                                                                         "the index reads all machines when it begins",
	`SELECT count\(\*\) FROM keyed_request`:                                                                            "bounded by maxKeyedRequests; reads no rows, only their number in an index",
	`SELECT count\(\*\) FROM machine`:                                                                                  "reads no rows, only their number in an index",
	`INSERT INTO machine \(.*\s.* sqlite_sequence (.|\s)*`:                                                             "sqlite_sequence has two rows",
	`SELECT name, doc, version, .* FROM machine( ORDER BY name)?`:                                                      "compares new machines with all others; or looks at all secrets",
	`SELECT rowid, run, sealed FROM (plan|assignment) WHERE length\(sealed\) > 0`:                                      "looks at all secrets",
	`SELECT rowid, run, sealed FROM applied WHERE length\(sealed\) > 0`:                                                "looks at all secrets",
	`SELECT rowid, run, sealed FROM fact WHERE length\(sealed\) > 0`:                                                   "looks at all secrets",
	`SELECT coalesce\(machine, ''\) .* FROM grant_ WHERE run <> '' ORDER BY machine`:                                   "all grants are asked for",
	`SELECT iif\(live, .* AS live\s+FROM grant_ WHERE run <> '' AND max\(.*`:                                           "all open windows are asked for, one row for each machine",
	`UPDATE grant_ SET netboot_until = CASE .*`:                                                                        "the clock was set: all windows move",
	`UPDATE grant_ SET site_epoch = \(SELECT value FROM meta WHERE name = 'site_epoch'\)`:                              "the site has moved: all grants are of its new epoch",
	`SELECT run, machine, coalesce\(json_extract\(doc, '\$\.id'\), ''\) AS workflow\s+FROM workflow WHERE final = 0.*`: "a restore: looks at all grants, once",
}

// elsewhere are the statements on connections outside the store, which are not recorded.
var elsewhere = []string{
	"SELECT count(*) FROM sqlite_master",
	"INSERT OR REPLACE INTO meta (name, value) VALUES ('backup', ?)",
}

// statements are all recorded statements.
type statements struct {
	mu   sync.Mutex
	seen map[string]bool
}

var all = statements{seen: map[string]bool{}}

func (s *statements) add(query string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[query] = true
}

// recorded is an Option that records the statements of the store.
func recorded(s *db) { s.driver = recorder{s.driver} }

type recorder struct{ driver.Driver }

func (r recorder) Open(dsn string) (driver.Conn, error) {
	c, err := r.Driver.Open(dsn)
	if err != nil {
		return nil, err
	}
	return recordedConn{c.(*sqlite3.SQLiteConn)}, nil
}

type recordedConn struct{ *sqlite3.SQLiteConn }

func (c recordedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	all.add(query)
	return c.SQLiteConn.PrepareContext(ctx, query)
}

func (c recordedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	all.add(query)
	return c.SQLiteConn.ExecContext(ctx, query, args)
}

func (c recordedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	all.add(query)
	return c.SQLiteConn.QueryContext(ctx, query, args)
}

func TestMain(m *testing.M) {
	code := m.Run()
	// With a selection of tests, only some of the statements run.
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" {
		if err := judgeStatements(); err != nil {
			fmt.Printf("--- FAIL: the statements of this package\n%v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

func judgeStatements() error {
	dir, err := os.MkdirTemp("", "statements-*")
	if err != nil {
		return err
	}
	s, err := Open(context.Background(), filepath.Join(dir, "inventory.db"), nil)
	if err != nil {
		return err
	}
	var errs []error
	used := map[string]bool{}
	source, err := sourceStatements()
	if err != nil {
		return err
	}
	for _, query := range slices.Sorted(maps.Keys(all.seen)) {
		if !slices.ContainsFunc(slices.Collect(maps.Values(source)), func(p *regexp.Regexp) bool { return p.MatchString(query) }) {
			continue // a statement of a test
		}
		found, err := fullScans(s.rw, query)
		if err != nil {
			errs = append(errs, err)
		}
		if len(found) == 0 {
			continue
		}
		why := ""
		for pattern := range scans {
			if regexp.MustCompile("(?s)^(" + pattern + ")$").MatchString(query) {
				why, used[pattern] = scans[pattern], true
			}
		}
		if why == "" {
			errs = append(errs, fmt.Errorf("it scans %s: %s", strings.Join(found, ", "), query))
		}
	}
	for pattern := range scans {
		if !used[pattern] {
			errs = append(errs, fmt.Errorf("no scanning statement matches %q any more: remove it from the list", pattern))
		}
	}
	recorded := append(slices.Collect(maps.Keys(all.seen)), elsewhere...)
	for text, p := range source {
		if !slices.ContainsFunc(recorded, p.MatchString) {
			errs = append(errs, fmt.Errorf("no test runs it: %s", text))
		}
	}
	return errors.Join(append(errs, s.Close(), os.RemoveAll(dir))...)
}

var (
	statement = regexp.MustCompile(`^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)
	scan      = regexp.MustCompile(`^(?:SCAN (\w+)(?:.* USING (?:COVERING )?INDEX (\w+))?|SEARCH (\w+) .*AUTOMATIC)`)
)

// fullScans returns the growing tables that query scans, according to the plan of SQLite.
func fullScans(db *sqlx.DB, query string) (out []string, err error) {
	if !statement.MatchString(query) {
		return nil, nil
	}
	var partial []string // whose rows are exactly the wanted ones
	if err := db.Select(&partial, "SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"); err != nil {
		return nil, err
	}
	plan, err := db.Preparex("EXPLAIN QUERY PLAN " + query)
	if err != nil {
		if strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "no such column") {
			return nil, nil // of a test's own migration
		}
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	defer func() { err = errors.Join(err, plan.Close()) }()
	for n := 0; ; n++ {
		var rows []struct {
			ID, Parent, Notused int
			Detail              string
		}
		// Only the driver knows the number of parameters.
		if err := plan.Select(&rows, make([]any, n)...); err != nil {
			if n < 30 && strings.Contains(err.Error(), "expected") {
				continue
			}
			return nil, fmt.Errorf("%s: %w", query, err)
		}
		for _, r := range rows {
			// SQLite builds an automatic index from the whole table.
			if m := scan.FindStringSubmatch(r.Detail); m != nil && m[1] != "CONSTANT" && !slices.Contains(partial, m[2]) {
				if table := tableOf(query, m[1]+m[3]); small[table] == "" {
					out = append(out, table)
				}
			}
		}
		return out, nil
	}
}

// tableOf returns the table that has this alias in query.
func tableOf(query, alias string) string {
	m := regexp.MustCompile(`(?i)\b(?:FROM|JOIN|UPDATE|INTO)\s+(\w+)\s+(?:AS\s+)?` + alias + `\b`).FindStringSubmatch(query)
	if m == nil {
		return alias
	}
	return m[1]
}

// sourceStatements returns the statements in the source, with a pattern for the beginning of each.
// Parts that are inserted at run time match anything.
func sourceStatements() (map[string]*regexp.Regexp, error) {
	out := map[string]*regexp.Regexp{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, pattern := sqlOf(e)
			if !statement.MatchString(text) {
				return true
			}
			// "SELECT " alone is a part of an expression that was already handled.
			out[file+": "+text] = regexp.MustCompile("(?s)^" + pattern)
			return false
		})
	}
	return out, nil
}

var verb = regexp.MustCompile(`%(\[\d\])?[sdqv]`)

// sqlOf returns the text of a string expression, and a pattern for its possible values.
func sqlOf(e ast.Expr) (text, pattern string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		if e.Kind != gotoken.STRING || err != nil {
			return "", ""
		}
		return s, strings.ReplaceAll(regexp.QuoteMeta(verb.ReplaceAllString(s, "\x00")), "\x00", ".*")
	case *ast.BinaryExpr:
		a, p := sqlOf(e.X)
		b, q := sqlOf(e.Y)
		return a + b, p + q
	}
	return "…", ".*"
}

// TestFullScansAreDetected: fullScans detects a full scan.
func TestFullScansAreDetected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for query, want := range map[string][]string{
		"SELECT seq FROM event WHERE message = ?":                                            {"event"},
		"SELECT e.seq FROM event AS e WHERE e.message = ?1 OR ?2":                            {"event"},
		"DELETE FROM agent WHERE boot = ?":                                                   {"agent"},
		"SELECT seq FROM event WHERE signalled = 0":                                          nil,
		"SELECT seq FROM event WHERE seq = ?":                                                nil,
		"SELECT value FROM meta":                                                             nil,
		"SELECT name FROM machine m WHERE EXISTS (SELECT 1 FROM log l WHERE l.text = m.doc)": {"machine", "log"},
	} {
		got, err := fullScans(w.rw, query)
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
	source, err := sourceStatements()
	require.NoError(t, err)
	require.Greater(t, len(source), 100, "the statements of the source are found")
}
