package sqlite

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// finished creates and ends a run of m1 with everything that a run can have.
func (w *world) finished(run string) {
	w.t.Helper()
	ctx := w.t.Context()
	o := w.take(run)
	_, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(w.t, err)
	_, err = w.Agents.Redeem(
		ctx,
		inventory.Redemption{Owner: o, Boot: 1, Hello: hello("nonce-" + run), TokenFor: token, SecretsUntil: w.in(time.Hour)},
	)
	require.NoError(w.t, err)
	require.NoError(w.t, w.Assignments.Assign(ctx, assignment(o, 0, 1)))
	_, err = w.Assignments.Report(
		ctx,
		o,
		1,
		action.Result{Key: action.Key{Epoch: o.Epoch, Attempt: 1}, ID: "r-" + run, State: action.Success, Log: "log"},
	)
	require.NoError(w.t, err)
	require.NoError(w.t, w.Workflows.PutWorkflow(ctx,
		inventory.Workflow{Run: run, Machine: "m1", State: inventory.StateSuccess, Started: w.clock.Now(), Ended: w.clock.Now()}))
	require.NoError(w.t, w.Grants.EndGrant(ctx, o))
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.ro.GetContext(w.t.Context(), &n, query, args...))
	return n
}

// everything counts the rows of a run.
func (w *world) everything(run string) (n int) {
	w.t.Helper()
	for _, table := range []string{"workflow", "plan", "assignment", "log", "event", "agent"} {
		n += w.count("SELECT count(*) FROM "+table+" WHERE run = ?", run)
	}
	return n
}

func TestPruneRuns(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for i := range 6 {
		w.finished(fmt.Sprintf("run-%d", i))
		w.clock.Add(24 * time.Hour)
	}
	// This old run is not over: its record is final, but it holds a grant.
	holder := w.take("holder")
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "holder", Machine: "m1", State: inventory.StateFailed,
		Started: w.in(-100 * 24 * time.Hour), Ended: w.in(-99 * 24 * time.Hour), Updated: w.in(-99 * 24 * time.Hour),
	}))
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "open", Machine: "m1", State: inventory.StateRunning,
		Started: w.in(-100 * 24 * time.Hour), Updated: w.in(-99 * 24 * time.Hour),
	}))

	n, err := w.Workflows.PruneRuns(ctx, w.in(-48*time.Hour), 6, 100)
	require.NoError(t, err)
	require.Zero(t, n, "six stay, however old")
	n, err = w.Workflows.PruneRuns(ctx, w.in(-48*time.Hour), 2, 1)
	require.NoError(t, err)
	require.Equal(t, 1, n, "one at a time")
	n, err = w.Workflows.PruneRuns(ctx, w.in(-48*time.Hour), 2, 100)
	require.NoError(t, err)
	require.Equal(t, 3, n, "run-4 is too young")
	for i := range 6 {
		run := fmt.Sprintf("run-%d", i)
		if i < 4 {
			require.Zero(t, w.everything(run), run)
		} else {
			require.Greater(t, w.everything(run), 5, run)
		}
	}
	for _, run := range []string{"holder", "open"} {
		_, err = w.Workflows.Workflow(ctx, run)
		require.NoError(t, err, run)
	}
	require.NoError(t, w.Grants.EndGrant(ctx, holder))
	n, err = w.Workflows.PruneRuns(ctx, w.in(-48*time.Hour), 0, 100)
	require.NoError(t, err)
	require.Equal(t, 1, n, "the holder")
	n, err = w.Workflows.PruneRuns(ctx, w.in(time.Hour), 0, 100)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	a, err := w.Agents.MachineAgent(ctx, "m1")
	require.NoError(t, err, "what is known of the hardware stays")
	require.Equal(t, "run-5", a.Run)
}

func TestPruneEvents(t *testing.T) {
	w := newWorld(t) // its machine is an event of an operator
	ctx := t.Context()
	w.finished("kept")
	held := w.take("held") // has no record yet
	w.clock.Add(100 * 24 * time.Hour)
	before := w.in(-90 * 24 * time.Hour)
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{
		{Machine: "m1", Kind: inventory.EventOperator, Key: "young", Message: "young"},
		{Machine: "m1", Kind: inventory.EventOperator, Key: "old", Message: "old", At: w.in(-91 * 24 * time.Hour)},
		{Machine: "m1", Run: "unknown", Epoch: 77, Kind: inventory.EventPower, Key: "x", At: w.in(-91 * 24 * time.Hour)},
	}))
	require.Equal(t, 2, w.count("SELECT count(*) FROM event WHERE run = '' AND at < ?", nanos(before)))
	n, err := w.Events.PruneEvents(ctx, before, 1)
	require.NoError(t, err)
	require.Equal(t, 1, n, "one at a time")
	n, err = w.Events.PruneEvents(ctx, before, 100)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 1, w.count("SELECT count(*) FROM event WHERE run = ''"))
	require.NotZero(t, w.count("SELECT count(*) FROM event WHERE run = 'kept'"))
	require.NotZero(t, w.count("SELECT count(*) FROM event WHERE run = ?", held.Run))

	seq, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)
	n, err = w.Events.PruneEvents(ctx, w.in(time.Hour), 100)
	require.NoError(t, err)
	require.Zero(t, n, "the newest stays")
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{{Machine: "m1", Kind: inventory.EventOperator, Key: "next"}}))
	next, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)
	require.Greater(t, next, seq)
}

func TestPruneBMCJobs(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.finished("kept")
	held := w.take("held") // has no record yet
	for i, run := range []string{"kept", held.Run, "gone", "gone", ""} {
		require.NoError(
			t,
			w.BMCJobs.PutBMCJob(ctx, inventory.BMCJob{Machine: "m1", Name: fmt.Sprintf("job-%d", i), Run: run, Started: w.clock.Now()}),
		)
	}
	require.NoError(t, w.BMCJobs.PutBMCJob(ctx, inventory.BMCJob{Machine: "m1", Name: "young", Run: "gone", Started: w.in(time.Hour)}))
	n, err := w.BMCJobs.PruneBMCJobs(ctx, w.in(time.Minute), 1)
	require.NoError(t, err)
	require.Equal(t, 1, n, "one at a time")
	n, err = w.BMCJobs.PruneBMCJobs(ctx, w.in(time.Minute), 100)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	left, err := w.BMCJobs.BMCJobs(ctx, "m1")
	require.NoError(t, err)
	require.Len(t, left, 3)
}

// filler appends n events of 16 KiB.
func (w *world) filler(n int) error {
	for range n {
		if err := w.Events.AppendEvents(w.t.Context(),
			[]inventory.Event{{
				Machine: "m1", Kind: inventory.EventOperator, Key: rand.Text(),
				Message: strings.Repeat("x", maxMessage),
			}}); err != nil {
			return err
		}
	}
	return nil
}

func TestShrink(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, w.filler(200))
	full := w.count("PRAGMA page_count")
	w.clock.Add(time.Hour)
	require.NoError(t, w.filler(1))
	n, err := w.Events.PruneEvents(ctx, w.clock.Now(), 1000)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 200)
	left, err := w.Shrink(ctx, 100)
	require.NoError(t, err)
	require.Positive(t, left, "a piece at a time")
	for left > 0 {
		before := left
		left, err = w.Shrink(ctx, 100)
		require.NoError(t, err)
		require.Less(t, left, before)
	}
	require.Less(t, w.count("PRAGMA page_count"), full/4)
}

// The size of the write-ahead log is limited.
func TestJournalIsBounded(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.filler(700)) // 11 MB
	st, err := os.Stat(w.path + "-wal")
	require.NoError(t, err)
	require.LessOrEqual(t, st.Size(), int64(maxJournal))
	require.Equal(t, maxJournal, func() (n int) {
		require.NoError(t, w.rw.GetContext(t.Context(), &n, "PRAGMA journal_size_limit"))
		return n
	}())
}

// A write on a full disk changes nothing, returns the error, calls the function that frees space,
// and works after that.
func TestFullDisk(t *testing.T) {
	w := newWorld(t)
	told := 0
	WithFull(func() { told++ })(w.db)
	o := w.armed()
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.NoError(t, w.Assignments.Assign(t.Context(), assignment(o, 0, 1)))
	limit := w.count("PRAGMA page_count")
	_, err = w.rw.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", limit))
	require.NoError(t, err)
	err = w.filler(100)
	require.ErrorIs(t, err, inventory.ErrFull)
	require.ErrorContains(t, err, "the disk is full")
	require.Positive(t, told)
	result := action.Result{Key: action.Key{Epoch: 1, Attempt: 1}, ID: "r", State: action.Success, Log: strings.Repeat("x", 32<<10)}
	_, err = w.Assignments.Report(t.Context(), o, 1, result)
	require.ErrorIs(t, err, inventory.ErrFull)
	_, g, err := w.Machines.MachineByMAC(t.Context(), "52:54:00:00:00:01")
	require.NoError(t, err, "readers go on")
	require.Equal(t, o, g.Owner)
	require.NoError(t, w.Grants.CloseNetboot(t.Context(), o), "what needs no new page is written: a machine can be disarmed")

	_, err = w.rw.ExecContext(t.Context(), "PRAGMA max_page_count = 1000000")
	require.NoError(t, err)
	fresh, err := w.Assignments.Report(t.Context(), o, 1, result)
	require.NoError(t, err)
	require.True(t, fresh, "the one before was not stored")
}

// A database and a copy of it can return unused pages.
func TestFilesCanShrink(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	copied := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, w.Copy(ctx, copied, "b1"))
	require.NoError(t, w.Close())

	for _, path := range []string{w.path, copied} {
		w.path = path
		w.reopen(w.keys)
		var mode int
		require.NoError(t, w.rw.GetContext(ctx, &mode, "PRAGMA auto_vacuum"))
		require.Equal(t, 2, mode, "incremental")
	}
}

// Shrinking a file that cannot return its unused pages ends instead of being repeated forever.
func TestFilesThatCannotShrink(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, err := w.rw.ExecContext(ctx, "PRAGMA auto_vacuum = 0; VACUUM")
	require.NoError(t, err)
	require.NoError(t, w.filler(100))
	w.clock.Add(time.Hour)
	require.NoError(t, w.filler(1))
	_, err = w.Events.PruneEvents(ctx, w.clock.Now(), 1000)
	require.NoError(t, err)
	require.Positive(t, w.count("PRAGMA freelist_count"))
	left, err := w.Shrink(ctx, 10)
	require.NoError(t, err)
	require.Zero(t, left)
}
