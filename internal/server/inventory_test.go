package server

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// usedInventory is the configuration of a site that has had a run and is stopped.
func usedInventory(t *testing.T) config.Config {
	t.Helper()
	cfg := testConfig(t)
	s, err := startWith(t, cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	secretsOf(t, s.records.store, "m1", 1)
	_, err = s.records.store.TemporalCluster(t.Context(), "cluster-1")
	require.NoError(t, errors.Join(err, s.records.store.Close()))
	return cfg
}

// overwritePageType changes the first byte of the page in which the table of
// machines begins.
func overwritePageType(t *testing.T, file string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+file)
	require.NoError(t, err)
	var size int64
	require.NoError(t, db.QueryRowContext(t.Context(), "PRAGMA page_size").Scan(&size))
	var page int64
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT rootpage FROM sqlite_master WHERE name = 'machine'").Scan(&page))
	require.NoError(t, db.Close())
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, (page-1)*size)
	require.NoError(t, errors.Join(err, f.Close()))
}

// endAtGreeting ends a server that serves.
type endAtGreeting context.CancelFunc

func (end endAtGreeting) Write(b []byte) (int, error) {
	end()
	return len(b), nil
}

// startAndEnd returns why a server does not start; nil = it started, and was ended.
func startAndEnd(t *testing.T, cfg config.Config) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := testOptions(cfg)
	o.Out = endAtGreeting(cancel)
	return Serve(ctx, o)
}

// TestDamagedInventoryIsRefused: at the start, with the command that helps.
func TestDamagedInventoryIsRefused(t *testing.T) {
	t.Parallel()
	cut := func(keep func(size int64) int64) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			st, err := os.Stat(file)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(file, keep(st.Size())))
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"page type":       overwritePageType,
		"cut to half":     cut(func(n int64) int64 { return n / 2 }),
		"cut by a page":   cut(func(n int64) int64 { return n - 4096 }),
		"cut in the head": cut(func(int64) int64 { return 50 }),
		"another file": func(t *testing.T, file string) {
			require.NoError(t, os.WriteFile(file, make([]byte, 8192), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := usedInventory(t)
			damage(t, InventoryFile(cfg))
			err := startAndEnd(t, cfg)
			require.ErrorIs(t, err, sqlite.ErrDamaged)
			var help interface{ Next() string }
			require.ErrorAs(t, err, &help)
			require.Contains(t, help.Next(), "ingot restore")
		})
	}
}

// TestLargeInventoryIsCheckedDuringTheWork: the server starts, and status tells.
func TestLargeInventoryIsCheckedDuringTheWork(t *testing.T) {
	t.Parallel()
	cfg := usedInventory(t)
	s := testServer(t, cfg)
	require.NotZero(t, s.status(t.Context()).Inventory.Checked)
	require.Empty(t, s.status(t.Context()).Inventory.Error)
	s.records.checked = inventoryCheck{size: checkAtStart + 1}
	require.Zero(t, s.status(t.Context()).Inventory.Checked, "it is under way")
	overwritePageType(t, InventoryFile(cfg))
	require.NoError(t, s.records.checkLarge(t.Context()))
	require.Contains(t, s.status(t.Context()).Inventory.Error, "ingot restore")
}

// TestCheckEndsInTime: a check that takes too long finds no damage.
func TestCheckEndsInTime(t *testing.T) {
	t.Parallel()
	file := InventoryFile(usedInventory(t))
	require.NoError(t, checkWithin(t.Context(), time.Hour, file))
	err := checkWithin(t.Context(), 0, file)
	require.ErrorIs(t, err, ErrUnchecked)
	require.NotErrorIs(t, err, sqlite.ErrDamaged)
}

// usedTemporal makes a database of the embedded Temporal that has a run.
func usedTemporal(t *testing.T, cfg config.Config) {
	t.Helper()
	file := temporalchild.DefaultConfig(filepath.Join(cfg.DataDir, "temporal")).File
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	db, err := sql.Open("sqlite", "file:"+file)
	require.NoError(t, err)
	_, err = db.ExecContext(
		t.Context(),
		`CREATE TABLE namespaces (id BLOB, name TEXT); CREATE TABLE current_executions (namespace_id BLOB, workflow_id TEXT);
		INSERT INTO namespaces VALUES (x'01', 'temporal-system'), (x'02', 'default'); INSERT INTO current_executions VALUES (x'01', 'scanner'), (x'02', 'machine/m1')`,
	)
	require.NoError(t, errors.Join(err, db.Close()))
}

// TestEmptyInventoryWithAUsedTemporalIsRefused, each time, also when the file is
// gone.
func TestEmptyInventoryWithAUsedTemporalIsRefused(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(string) error{
		"empty": func(file string) error { return os.Truncate(file, 0) },
		"gone":  os.Remove,
	} {
		cfg := usedInventory(t)
		usedTemporal(t, cfg)
		s, err := startWith(t, cfg, slog.New(slog.DiscardHandler))
		require.NoError(t, err, "its own inventory")
		require.NoError(t, s.records.store.Close())
		require.NoError(t, lose(InventoryFile(cfg)))
		for range 2 {
			err := startAndEnd(t, cfg)
			require.ErrorIs(t, err, inventory.ErrConflict, name)
			require.ErrorContains(t, err, "1 run of this site", name)
			var help interface{ Next() string }
			require.ErrorAs(t, err, &help, name)
			require.Contains(t, help.Next(), "ingot restore", name)
		}
	}
}
