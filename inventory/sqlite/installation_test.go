package sqlite

import (
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// Of machines that were installed before installations were recorded, the run
// that wrote a disk last is known: its phone-home tells that a boot was lost. The
// boot is not, so that the instance id stays what it was.
func TestInstallationsAreKnownAfterTheMigration(t *testing.T) {
	known, err := fs.Sub(embedded, "migrations")
	require.NoError(t, err)
	before := fstest.MapFS{}
	for _, name := range []string{"0001_inventory.sql", "0002_genesis.sql", "0003_relay.sql"} {
		text, err := fs.ReadFile(known, name)
		require.NoError(t, err)
		before[name] = &fstest.MapFile{Data: text}
	}
	path, keys := filepath.Join(t.TempDir(), "inventory.db"), keyring.New()
	s, err := open(t.Context(), path, keys, before)
	require.NoError(t, err)
	for _, stmt := range []string{
		`INSERT INTO machine (name, doc, created, updated) VALUES ('m1', '{"name":"m1"}', 1, 1), ('m2', '{"name":"m2"}', 1, 1)`,
		`INSERT INTO disk_written (machine, identity, run, at) VALUES ('m1', 'serial:A', 'r1', 1), ('m1', 'serial:B', 'r2', 2), ('m1', 'wwn:B', 'r2', 2)`,
		`INSERT INTO workflow (run, machine, state, final, started, ended, updated, doc) VALUES
			('r1', 'm1', 'SUCCESS', 1, 1, 1, 1, '{"epoch":4}'), ('r2', 'm1', 'SUCCESS', 1, 2, 2, 2, '{"epoch":7}')`,
	} {
		_, err := s.rw.ExecContext(t.Context(), stmt)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())

	s, err = Open(t.Context(), path, keys)
	require.NoError(t, err)
	defer s.Close()
	m, err := s.Machine(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, &inventory.Installation{Owner: inventory.Owner{Machine: "m1", Run: "r2", Epoch: 7}}, m.Installation)
	m, err = s.Machine(t.Context(), "m2")
	require.NoError(t, err)
	require.Nil(t, m.Installation)
}

// An installation outlives the machine's entry and a restore, which both end its
// grant; a decommissioning that wiped all disks ends it.
func TestInstallationOutlivesTheGrant(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	_, err := w.redeem(o, 1, "n")
	require.NoError(t, err)
	a := assignment(o, 0, 1)
	a.Writes = true
	require.NoError(t, w.Assign(t.Context(), a))
	of := func() *inventory.Installation {
		t.Helper()
		m, err := w.Machine(t.Context(), "m1")
		require.NoError(t, err)
		return m.Installation
	}
	want := &inventory.Installation{Owner: o, Boot: 1}
	require.Equal(t, want, of())
	g, err := w.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.True(t, g.Acting)

	// The last action, under the next boot, which then is an installer's.
	_, err = w.AllowBoot(t.Context(), o, 2, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.redeem(o, 2, "n2")
	require.NoError(t, err)
	last := assignment(o, 1, 1)
	last.Boot, last.Writes, last.Payload.Leaving = 2, true, true
	require.NoError(t, w.Assign(t.Context(), last))
	want.Boot = 2
	require.Equal(t, want, of())
	g, err = w.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.False(t, g.Acting)

	require.NoError(t, w.EndGrant(t.Context(), o))
	require.NoError(t, w.DeleteMachine(t.Context(), "m1", "test"))
	require.NoError(t, w.PutMachines(t.Context(), []inventory.Machine{machine("m1", 1)}, false, "test"))
	require.Equal(t, want, of())
	_, err = w.Restored(t.Context(), "b1", w.clock.Now(), nil)
	require.NoError(t, err)
	require.Equal(t, want, of())

	o = w.take("run-2")
	require.NoError(t, w.Retire(t.Context(), o, inventory.Standing{State: inventory.StandingAvailable}, true))
	require.Nil(t, of())
}

// The boot of an installer follows the agent's actions: it has the disk to itself.
func TestAnInstallersBootEndsTheActions(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	_, err := w.redeem(o, 1, "n")
	require.NoError(t, err)
	require.NoError(t, w.Assign(t.Context(), assignment(o, 0, 1)))
	g, err := w.AllowInstaller(t.Context(), o, 2, w.in(time.Hour))
	require.NoError(t, err)
	require.False(t, g.Acting)
}
