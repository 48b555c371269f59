package sqlite

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/inventory"
)

// TestCopyAndRestore: the contents of a backup are restored completely, and nothing from before
// takes effect: there is a new site epoch, no grant, every open run is on hold, and an earlier
// agent is told to hold and never that its run has ended.
func TestCopyAndRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	_, err := w.TemporalCluster(ctx, "cluster-1")
	require.NoError(t, err)
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2), machine("m3", 3)}, false, "test"))
	o := w.armed()
	agent, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "run-1", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning,
		Phase: inventory.PhaseAction, Epoch: o.Epoch, Started: w.clock.Now(),
	}))
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "run-2", ID: "machine/m2", Machine: "m2", State: inventory.StateSuccess,
		Started: w.clock.Now(),
	}))
	_, err = w.Grants.ArmByHand(ctx, "m3", "admin", w.in(time.Hour))
	require.NoError(t, err)
	before, err := dbcopy.Read(ctx, w.rw)
	require.NoError(t, err)

	to := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, w.Copy(ctx, to, "b1"))
	require.Error(t, w.Copy(ctx, to, "b2"), "an existing file is not overwritten")
	c, err := ReadCopy(ctx, to)
	require.NoError(t, err)
	require.Equal(t, "b1", c.ID)
	require.Equal(t, "cluster-1", c.Cluster)
	require.Equal(t, currentSchema(t).version(), c.Schema)
	require.Equal(t, before["meta"].Rows+1, c.Tables["meta"].Rows)
	delete(before, "meta")
	delete(c.Tables, "meta")
	require.NoError(t, dbcopy.Differ(before, c.Tables))

	w.path = to
	w.reopen(w.keys)
	was, err := w.HandOvers.SiteEpoch(ctx)
	require.NoError(t, err)
	// Temporal's copy is older: a run that has ended in the inventory is open there.
	r, err := w.Restores.Restored(ctx, inventory.Restore{
		Backup: "b1", Taken: w.in(-time.Hour),
		Held: []inventory.HeldRun{{Run: "run-2", Workflow: "machine/m2", Machine: "m2"}, {Run: "run-1", Workflow: "machine/m1", Machine: "m1"}},
	})
	require.NoError(t, err)
	require.Equal(t, []inventory.HeldRun{
		{Run: "run-1", Workflow: "machine/m1", Machine: "m1"},
		{Run: "run-2", Workflow: "machine/m2", Machine: "m2"},
	}, r.Held)
	now, err := w.HandOvers.SiteEpoch(ctx)
	require.NoError(t, err)
	require.Equal(t, was+1, now)
	grants, err := w.Grants.Grants(ctx)
	require.NoError(t, err)
	require.Empty(t, grants)
	again, err := w.Restores.LastRestore(ctx)
	require.NoError(t, err)
	require.Equal(t, r, again)

	sum := sha256.Sum256([]byte(token("n1")))
	_, err = w.Agents.AgentByToken(ctx, sum[:])
	require.ErrorIs(t, err, inventory.ErrNotFound, "an earlier agent is told to hold: its grant is unknown")
	_, err = w.Agents.Redeem(ctx, inventory.Redemption{Owner: o, Boot: 1, Hello: hello("n1"), TokenFor: token, SecretsUntil: w.in(time.Hour)})
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrFenced)

	g, err := w.Grants.TakeGrant(ctx, "m1", "run-9", "machine/m1", false)
	require.NoError(t, err)
	require.Greater(t, g.Epoch, agent.Epoch, "epochs only ever grow")
	require.Equal(t, now, g.SiteEpoch)
}

// Writes after the backup are unknown: the rest of an earlier run must not be carried out, whether
// that run had ended or was on hold.
func TestNoRunIsResumedAfterRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	for run, state := range map[string]string{"ended": inventory.StateFailed, "open": inventory.StateRunning} {
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: run, Machine: "m1", State: state}))
		require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: run}))
	}
	_, err := w.Restores.Restored(ctx, inventory.Restore{Backup: "b1", Taken: w.in(-time.Hour)})
	require.NoError(t, err)
	for _, run := range []string{"ended", "open"} {
		err := w.Workflows.Resumable(ctx, run)
		require.ErrorIs(t, err, inventory.ErrConflict, run)
		require.ErrorContains(t, err, "restored from a backup")
		require.ErrorContains(t, err, "can only be retried from the start")
	}
}

// Temporal's copy is older than the inventory's, so the numbers of the next records are lower.
func TestHeldRunIsRecordedAfterRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	run := inventory.Workflow{Run: "run-1", Machine: "m1", State: inventory.StateRunning, Phase: inventory.PhaseAgent, Seq: 6}
	require.NoError(t, w.Workflows.PutWorkflow(ctx, run))
	op := inventory.Operation{Run: "run-2", ID: "genesis", State: inventory.StateRunning, Seq: 6}
	require.NoError(t, w.Operations.PutOperation(ctx, op))
	_, err := w.Restores.Restored(ctx, inventory.Restore{Backup: "b1", Taken: w.in(-time.Hour)})
	require.NoError(t, err)

	run.Phase, run.Seq = inventory.PhaseWaiting, 5
	require.NoError(t, w.Workflows.PutWorkflow(ctx, run))
	gotRun, err := w.Workflows.Workflow(ctx, run.Run)
	require.NoError(t, err)
	require.Equal(t, inventory.PhaseWaiting, gotRun.Phase)
	op.Message, op.Seq = "asks", 5
	require.NoError(t, w.Operations.PutOperation(ctx, op))
	gotOp, err := w.Operations.Operation(ctx, op.Run)
	require.NoError(t, err)
	require.Equal(t, "asks", gotOp.Message)
}

// TestHoldRuns: the runs of a cluster are held along with those of the backup, and each machine's history says so once.
func TestHoldRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(
		t,
		w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: "run-1", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning}),
	)
	require.NoError(
		t,
		w.Operations.PutOperation(ctx, inventory.Operation{Run: "its first execution", ID: "recover/all", State: inventory.StateRunning}),
	)
	first, err := w.Restores.Restored(ctx, inventory.Restore{Backup: "b1", Taken: w.in(-time.Hour), AwaitsCluster: true})
	require.NoError(t, err)
	require.True(t, first.AwaitsCluster)
	require.Len(t, first.Held, 1)

	there := []inventory.HeldRun{
		inventory.NewHeldRun("run-1", "machine/m1"), inventory.NewHeldRun("run-2", "recover/all"), inventory.NewHeldRun("run-3", "bmc/m1/off"),
		inventory.NewHeldRun("run-4", "recover/more"),
	}
	r, err := w.Restores.HoldRuns(ctx, there)
	require.NoError(t, err)
	require.Equal(t, inventory.Restore{Backup: "b1", Taken: first.Taken, At: first.At, Held: []inventory.HeldRun{
		{Run: "run-3", Workflow: "bmc/m1/off", Machine: "m1", Later: true},
		{Run: "run-1", Workflow: "machine/m1", Machine: "m1"},
		{Run: "run-2", Workflow: "recover/all"},
		{Run: "run-4", Workflow: "recover/more", Later: true},
	}}, r)
	again, err := w.Restores.LastRestore(ctx)
	require.NoError(t, err)
	require.Equal(t, r, again)
	var told int
	require.NoError(t, w.ro.GetContext(ctx, &told, "SELECT count(*) FROM event WHERE machine = 'm1' AND by = 'restore'"))
	require.Equal(t, 2, told)
}

func TestNeverRestored(t *testing.T) {
	t.Parallel()
	r, err := newWorld(t).Restores.LastRestore(t.Context())
	require.NoError(t, err)
	require.Empty(t, r)
}

func TestSealedNamesAllSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := machine("m2", 2)
	m.UserData = inventory.NewSecret("#cloud-config")
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
	names, err := w.Restores.Sealed(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"m2: userData"}, names)
}

func TestReadCopyRefuses(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"newer schema":    "PRAGMA user_version = 999",
		"older schema":    "PRAGMA user_version = 6",
		"another program": "PRAGMA application_id = 7",
	} {
		w := newWorld(t)
		to := filepath.Join(t.TempDir(), "copy.db")
		require.NoError(t, w.Copy(t.Context(), to, "b1"), name)
		db, err := sql.Open("sqlite3", "file:"+to)
		require.NoError(t, err, name)
		_, err = db.Exec(spoil)
		require.NoError(t, errors.Join(err, db.Close()), name)
		_, err = ReadCopy(t.Context(), to)
		require.Error(t, err, name)
	}
	empty := filepath.Join(t.TempDir(), "empty.db")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, err := ReadCopy(t.Context(), empty)
	require.Error(t, err)
}

// TestSiteID: a site keeps its id over a restart and a restore.
func TestSiteID(t *testing.T) {
	s := newWorld(t)
	id, err := s.Restores.SiteID(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `^[a-z2-7]{8}$`, id)
	again, err := s.Restores.SiteID(t.Context())
	require.NoError(t, err)
	require.Equal(t, id, again)

	file := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, s.Copy(t.Context(), file, "b1"))
	restored, err := Open(t.Context(), file, nil)
	require.NoError(t, err)
	again, err = restored.Restores.SiteID(t.Context())
	require.NoError(t, errors.Join(err, restored.Close()))
	require.Equal(t, id, again)
}
