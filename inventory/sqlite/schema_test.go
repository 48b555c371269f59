package sqlite

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// currentSchema returns the schema of this program.
func currentSchema(t *testing.T) schema {
	t.Helper()
	s, err := embeddedSchema()
	require.NoError(t, err)
	return s
}

// schemaWith returns this program's migrations with another one added.
func schemaWith(t *testing.T, text string) schema {
	t.Helper()
	dir, err := fs.Sub(embedded, "migrations")
	require.NoError(t, err)

	all := fstest.MapFS{}
	for _, m := range currentSchema(t) {
		b, err := fs.ReadFile(dir, m.name)
		require.NoError(t, err)
		all[m.name] = &fstest.MapFile{Data: b}
	}
	next := currentSchema(t).version() + 1
	all[fmt.Sprintf("%04d_more.sql", next)] = &fstest.MapFile{Data: []byte(text)}
	s, err := readSchema(all)
	require.NoError(t, err)
	require.Equal(t, next, s.version())
	return s
}

func TestMigrationsAreNumberedWithoutGaps(t *testing.T) {
	s := currentSchema(t)
	require.Positive(t, s.baseline())
	for i, m := range s {
		require.Equal(t, s.baseline()+i, m.version, m.name)
	}
}

func TestOpenRefusesOtherSchemas(t *testing.T) {
	for version, want := range map[int][]string{
		99: {fmt.Sprintf("schema version 99, and this program supports versions up to %d", currentSchema(t).version()), "restore the backup"},
		currentSchema(t).baseline() - 1: {
			fmt.Sprintf("from before the first release, and this program supports versions from %d on", currentSchema(t).baseline()),
			"empty data directory",
		},
	} {
		w := newWorld(t)
		require.NoError(t, w.Close())
		db, err := sql.Open("sqlite3", dsn(w.path, ""))
		require.NoError(t, err)
		_, err = db.Exec(fmt.Sprintf("PRAGMA user_version = %d; PRAGMA journal_mode = DELETE", version))
		require.NoError(t, err)
		require.NoError(t, db.Close())
		before, err := os.ReadFile(w.path)
		require.NoError(t, err)

		_, err = Open(t.Context(), w.path, nil)
		for _, text := range append(want, w.path) {
			require.ErrorContains(t, err, text)
		}
		after, err := os.ReadFile(w.path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after), "the file was not changed")
	}
}

func TestOpenRefusesForeignDatabase(t *testing.T) {
	w := newWorld(t)
	_, err := w.rw.ExecContext(t.Context(), "PRAGMA application_id = 0")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = Open(t.Context(), w.path, nil)
	require.ErrorContains(t, err, "database of another program")
}

// A database with the baseline schema keeps its rows when it migrates, and gets the schema of a new
// one.
func TestMigrationFromBaseline(t *testing.T) {
	baseline := currentSchema(t)[:1]
	path, keys := filepath.Join(t.TempDir(), "inventory.db"), keyring.New()
	s, err := open(t.Context(), path, keys, baseline)
	require.NoError(t, err)
	doc, err := toJSON(machine("m1", 1)) // this version stores columns that the baseline does not have
	require.NoError(t, err)
	_, err = s.rw.ExecContext(t.Context(), "INSERT INTO machine (name, doc, created, updated) VALUES ('m1', ?, 1, 1)", doc)
	require.NoError(t, err)
	require.NoError(t, s.Close())

	known := schemaWith(t, "ALTER TABLE template ADD COLUMN more TEXT")
	s, err = open(t.Context(), path, keys, known)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	fresh, err := open(t.Context(), filepath.Join(t.TempDir(), "new.db"), keys, known)
	require.NoError(t, err)
	defer fresh.Close()

	describe := func(s *Store) (version int, tables []string) {
		require.NoError(t, s.ro.Get(&version, "PRAGMA user_version"))
		require.NoError(t, s.ro.Select(&tables, "SELECT name || coalesce(sql, '') FROM sqlite_master ORDER BY name"))
		return version, tables
	}
	migratedVersion, migrated := describe(s)
	version, tables := describe(fresh)
	require.Equal(t, known.version(), version)
	require.Equal(t, version, migratedVersion)
	require.Equal(t, tables, migrated)
}

// What was stored while an operator was called a person reads as one.
func TestMigrationRenamesOperators(t *testing.T) {
	before := currentSchema(t)
	i := slices.IndexFunc(before, func(m migration) bool { return m.name == "0016_operator.sql" })
	path, keys := filepath.Join(t.TempDir(), "inventory.db"), keyring.New()
	s, err := open(t.Context(), path, keys, before[:i])
	require.NoError(t, err)
	_, err = s.rw.ExecContext(t.Context(), `
		INSERT INTO grant_ (machine, run, epoch, site_epoch, workflow, boot, boots_left, spent, netboot_until, secrets_until, taken)
		VALUES ('m1', 'person:ann', 1, 0, '', 1, 0, 0, 0, 0, 1), ('m2', 'r1', 1, 0, 'machine/m2', 1, 0, 0, 0, 0, 1);
		INSERT INTO workflow (run, machine, state, final, started, ended, updated, doc)
		VALUES ('r1', 'm2', 'RUNNING', 0, 1, 0, 1, '{"run":"r1","phase":"waiting-for-person"}'),
			('r0', 'm2', 'SUCCESS', 1, 1, 1, 1, '{"run":"r0","phase":"done","evidence":"person"}');
		INSERT INTO operation (run, id, kind, name, final, started, doc)
		VALUES ('o1', 'recover/all', 'Recover', 'all', 0, 1, '{"run":"o1","id":"recover/all","step":"waiting-for-person"}');
		INSERT INTO event (machine, run, epoch, boot, kind, key, at, count, message, detail, by, signalled)
		VALUES ('m1', 'person:ann', 1, 0, 'grant', '', 1, 1, '', NULL, '', 1),
			('m2', 'r1', 1, 0, 'phase', '1.waiting-for-person', 1, 1, 'waiting-for-person: which disk?', '{"phase":"waiting-for-person"}', '', 1),
			('m2', 'r1', 1, 0, 'phase', '2.bind', 1, 1, 'bind', '{"phase":"bind","before":"waiting-for-person"}', '', 1)`)
	require.NoError(t, err)
	require.NoError(t, s.Close())

	s, err = Open(t.Context(), path, keys)
	require.NoError(t, err)
	defer s.Close()
	g, err := s.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, "operator:ann", g.Run)
	require.True(t, g.ByOperator())
	g, err = s.Grants.Grant(t.Context(), "m2")
	require.NoError(t, err)
	require.Equal(t, "r1", g.Run)
	open, err := s.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, inventory.PhaseWaiting, open.Phase)
	ended, err := s.Workflows.Workflow(t.Context(), "r0")
	require.NoError(t, err)
	require.Equal(t, "operator", ended.Evidence)

	var old int
	require.NoError(t, s.ro.Get(&old, `SELECT (SELECT count(*) FROM event WHERE run || key || message || coalesce(detail, '') LIKE '%person%')
		+ (SELECT count(*) FROM operation WHERE doc LIKE '%person%') + (SELECT count(*) FROM agent WHERE run LIKE '%person%')`))
	require.Zero(t, old)
	var phase inventory.PhaseChange
	var detail string
	require.NoError(t, s.ro.Get(&detail, "SELECT detail FROM event WHERE key = '1.waiting-for-operator'"))
	require.NoError(t, json.Unmarshal([]byte(detail), &phase))
	require.Equal(t, inventory.PhaseWaiting, phase.Phase)
}

func TestMigrationBacksUpFirst(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Close())

	s, err := open(t.Context(), w.path, w.keys, schemaWith(t, "DELETE FROM machine; DELETE FROM nothing;"))
	require.ErrorContains(t, err, "_more.sql")
	require.Error(t, s.rw.PingContext(t.Context()), "the store is closed")
	s, err = Open(t.Context(), w.path, w.keys)
	require.NoError(t, err, "a failed migration changes nothing")
	_, err = s.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	require.NoError(t, s.Close())

	next := schemaWith(t, "ALTER TABLE template ADD COLUMN more TEXT; DELETE FROM machine;")
	s, err = open(t.Context(), w.path, w.keys, next)
	require.NoError(t, err)
	_, err = s.Machines.Machine(t.Context(), "m1")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.NoError(t, s.Close())
	_, err = Open(t.Context(), w.path, w.keys)
	require.ErrorContains(t, err, fmt.Sprintf("schema version %d", next.version()))

	backups, err := filepath.Glob(fmt.Sprintf("%s.schema-%d.*.backup", w.path, currentSchema(t).version()))
	require.NoError(t, err)
	require.Len(t, backups, 2)
	for _, b := range backups {
		st, err := os.Stat(b)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
		s, err := Open(t.Context(), b, w.keys)
		require.NoError(t, err)
		_, err = s.Machines.Machine(t.Context(), "m1")
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
}
