package sqlite

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

func TestPlanIsWrittenOnce(t *testing.T) {
	w := newWorld(t)
	p := inventory.Plan{
		Run: "run-1", Digest: "d1", Actions: []action.Action{{Name: "a", Image: "noop", Timeout: 5}}, GlobalTimeout: 60,
		DiskAlias: "/dev/sda",
	}
	require.NoError(t, w.Plans.PutPlan(t.Context(), p))
	require.ErrorIs(t, w.Plans.PutPlan(t.Context(), inventory.Plan{Run: "run-1", Digest: "d2"}), inventory.ErrConflict)
	require.NoError(t, w.Plans.PutPlan(t.Context(), p), "a retry after a lost answer")
	got, err := w.Plans.Plan(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, p, got)
	_, err = w.Plans.Plan(t.Context(), "run-2")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	// A sealed plan cannot be used for another run.
	_, err = w.rw.ExecContext(t.Context(), "UPDATE plan SET run = 'run-2'")
	require.NoError(t, err)
	_, err = w.Plans.Plan(t.Context(), "run-2")
	require.ErrorIs(t, err, inventory.ErrSealed)
}

func TestAssignAndReport(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	first := assignment(o, 0, 1)
	k := first.Key
	for range 3 {
		changed := assignment(o, 0, 1)
		changed.Payload.Action.Name = "something else"
		require.NoError(t, w.Assignments.Assign(ctx, changed))
	}
	require.Len(t, w.events(inventory.EventAssigned), 1)
	require.NoError(t, w.Assignments.Assign(ctx, assignment(o, 1, 1)))
	bad := assignment(o, 2, 1)
	bad.Key.Epoch++
	require.ErrorIs(t, w.Assignments.Assign(ctx, bad), inventory.ErrInvalid)

	got, err := w.Assignments.NextAssignment(ctx, o)
	require.NoError(t, err)
	want := first
	want.Boot, want.State = 1, action.Pending
	require.Equal(t, want, got, "the first result is kept")
	for range 3 {
		require.NoError(t, w.Assignments.Delivered(ctx, o, k))
	}
	require.Len(t, w.events(inventory.EventActionStarted), 1)
	got, err = w.Assignments.NextAssignment(ctx, o)
	require.NoError(t, err)
	require.Equal(t, action.Running, got.State)
	require.Equal(t, w.clock.Now(), got.Delivered)
	require.ErrorIs(t, w.Assignments.Delivered(ctx, o, action.Key{Epoch: o.Epoch, Action: 9, Attempt: 1}), inventory.ErrNotFound)

	_, err = w.Assignments.Result(ctx, o.Run, k)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r0", State: action.Running})
	require.ErrorIs(t, err, inventory.ErrInvalid)
	_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: action.Key{Epoch: o.Epoch + 1, Attempt: 1}, ID: "r0", State: action.Success})
	require.ErrorIs(t, err, inventory.ErrFenced)
	_, err = w.Assignments.Report(
		ctx,
		o,
		1,
		action.Result{Key: action.Key{Epoch: o.Epoch, Action: 7, Attempt: 1}, ID: "r0", State: action.Success},
	)
	require.ErrorIs(t, err, inventory.ErrNotFound)

	r := action.Result{
		Key: k, ID: "r1", State: action.Failed, ExitCode: 3, Message: "no space", Log: "a\nb\n",
		Output: map[string]string{"bytes": "1"},
	}
	for i := range 3 {
		fresh, err := w.Assignments.Report(ctx, o, 1, r)
		require.NoError(t, err)
		require.Equal(t, i == 0, fresh)
	}
	// A later result for the same attempt is ignored, even a success.
	fresh, err := w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r2", State: action.Success})
	require.NoError(t, err)
	require.False(t, fresh)
	done := w.events(inventory.EventActionDone)
	require.Len(t, done, 1)
	var inEvent action.Result
	require.NoError(t, json.Unmarshal(done[0].Detail, &inEvent))
	r.Log = ""
	require.Equal(t, r, inEvent)
	stored, err := w.Assignments.Result(ctx, o.Run, k)
	require.NoError(t, err)
	require.Equal(t, r, stored)
	a, err := w.Assignments.Assignment(ctx, o, k)
	require.NoError(t, err)
	require.Equal(t, action.Failed, a.State)
	text, err := w.Workflows.Log(ctx, o.Run, 0, 0)
	require.NoError(t, err)
	require.Equal(t, "a\nb\n", text)

	// A repeated report id does not replace the result of another attempt.
	got, err = w.Assignments.NextAssignment(ctx, o)
	require.NoError(t, err)
	require.Equal(t, 1, got.Key.Action)
	fresh, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: got.Key, ID: "r1", State: action.Success})
	require.NoError(t, err)
	require.True(t, fresh)
	require.Len(t, w.events(inventory.EventActionDone), 2)
	_, err = w.Assignments.NextAssignment(ctx, o)
	require.ErrorIs(t, err, inventory.ErrNotFound)
}

func TestStop(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	k := assignment(o, 0, 1).Key
	require.ErrorIs(
		t,
		w.Assignments.StopAssignment(ctx, o, action.Key{Epoch: o.Epoch, Action: 5, Attempt: 1}, w.clock.Now()),
		inventory.ErrNotFound,
	)
	stops, err := w.Assignments.Stops(ctx, o)
	require.NoError(t, err)
	require.Empty(t, stops)
	require.NoError(t, w.Assignments.StopAssignment(ctx, o, k, w.clock.Now()))
	require.NoError(t, w.Assignments.StopAssignment(ctx, o, k, w.in(time.Hour)))
	require.Len(t, w.events(inventory.EventStop), 1)
	a, err := w.Assignments.Assignment(ctx, o, k)
	require.NoError(t, err)
	require.Equal(t, w.clock.Now(), a.StopAt)
	stops, err = w.Assignments.Stops(ctx, o)
	require.NoError(t, err)
	require.Equal(t, []action.Key{k}, stops)
	_, err = w.Assignments.NextAssignment(ctx, o)
	require.ErrorIs(t, err, inventory.ErrNotFound, "an attempt with an order to stop is not offered again")
	_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r", State: action.Stopped})
	require.NoError(t, err)
	stops, err = w.Assignments.Stops(ctx, o)
	require.NoError(t, err)
	require.Empty(t, stops)
	require.NoError(t, w.Assignments.StopAssignment(ctx, o, k, w.clock.Now()), "it has its result already")
}

func TestAssignmentsBelongToABoot(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	_, err := w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.Assignments.NextAssignment(ctx, o)
	require.ErrorIs(t, err, inventory.ErrNotFound, "an unfinished attempt of boot 1 is not offered to boot 2")
	late := assignment(o, 0, 1)
	late.Boot = 1
	require.NoError(t, w.Assignments.Assign(ctx, late), "a repeated call")
	late.Boot = 2
	require.ErrorIs(t, w.Assignments.Assign(ctx, late), inventory.ErrConflict)
	late = assignment(o, 3, 1)
	late.Boot = 1
	require.ErrorIs(t, w.Assignments.Assign(ctx, late), inventory.ErrConflict)
	again := assignment(o, 0, 2)
	again.Boot = 2
	require.ErrorIs(t, w.Assignments.Assign(ctx, again), inventory.ErrConflict, "no one has claimed boot 2")
	_, err = w.redeem(o, 2, "n2")
	require.NoError(t, err)
	require.NoError(t, w.Assignments.Assign(ctx, again))
	got, err := w.Assignments.NextAssignment(ctx, o)
	require.NoError(t, err)
	require.Equal(t, again.Key, got.Key)
	require.Equal(t, 2, got.Boot)
}

func TestLogKeepsItsTail(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	k := assignment(o, 0, 1).Key
	_, err := w.Workflows.Log(ctx, o.Run, 0, 0)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	line := strings.Repeat("ä", 50) + "\n"
	for range 10 {
		require.NoError(t, w.Agents.AppendLog(ctx, o, k, strings.Repeat(line, 100)))
	}
	require.NoError(t, w.Agents.AppendLog(ctx, o, k, "one\ntwo\x00 \xff\n"))
	text, err := w.Workflows.Log(ctx, o.Run, 0, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, len(text), maxLog)
	require.Greater(t, len(text), maxLog-8)
	require.True(t, strings.HasSuffix(text, "one\ntwo \ufffd\n"))
	require.True(t, strings.HasPrefix(text, "ä"))

	// The tail in the result overlaps with the log from heartbeats.
	_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r", State: action.Failed, Log: "two \ufffd\nthree\n"})
	require.NoError(t, err)
	text, err = w.Workflows.Log(ctx, o.Run, 0, 0)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(text, "one\ntwo \ufffd\nthree\n"))
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		have, tail string
		want       int
	}{
		{"", "a", 0},
		{"abc", "bc", 2},
		{"abc", "b", 1},
		{"abc", "bcd", 2},
		{"abab", "abc", 2},
		{"aab", "abx", 2},
		{"xyz", "abc", 0},
		{"a", "ab", 1},
	} {
		require.Equal(t, c.want, overlap(c.have, c.tail), "%q then %q", c.have, c.tail)
	}
}

func TestWorkflowRecords(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	rec := inventory.Workflow{
		Run: o.Run, ID: "machine/m1", Type: "Provision", Machine: "m1", Epoch: o.Epoch, State: inventory.StateRunning,
		Phase:   inventory.PhaseAction,
		Actions: []inventory.ActionRecord{{Name: "a", State: action.Running}}, Question: &inventory.Question{ID: "1.0.1", Text: "?"},
		Disk: &action.Disk{Serial: "S1"}, Started: w.clock.Now(), Updated: w.clock.Now(), Seq: 10,
	}
	require.NoError(t, w.Workflows.PutWorkflow(ctx, rec))
	got, err := w.Workflows.Workflow(ctx, o.Run)
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.ErrorIs(t, w.Workflows.DeleteWorkflow(ctx, o.Run, "ann"), inventory.ErrConflict)

	// A late activity of a lost task writes an earlier state.
	early := rec
	early.Phase, early.Seq = inventory.PhaseBind, 9
	require.NoError(t, w.Workflows.PutWorkflow(ctx, early))
	got, err = w.Workflows.Workflow(ctx, o.Run)
	require.NoError(t, err)
	require.Equal(t, inventory.PhaseAction, got.Phase)

	failed := rec
	failed.State, failed.Phase, failed.Ended, failed.Started = inventory.StateFailed, inventory.PhaseFailed, w.in(time.Minute), time.Time{}
	require.NoError(t, w.Workflows.PutWorkflow(ctx, failed))
	for _, late := range []string{inventory.StateRunning, inventory.StateSuccess} {
		rec.State = late
		require.NoError(t, w.Workflows.PutWorkflow(ctx, rec))
		got, err = w.Workflows.Workflow(ctx, o.Run)
		require.NoError(t, err)
		require.Equal(t, inventory.StateFailed, got.State, "%s came late", late)
	}
	failed.Message = "said later"
	require.NoError(t, w.Workflows.PutWorkflow(ctx, failed))
	got, err = w.Workflows.Workflow(ctx, o.Run)
	require.NoError(t, err)
	require.Equal(t, inventory.StateFailed, got.State)
	require.Equal(t, "said later", got.Message)
	require.Equal(t, rec.Started, got.Started)

	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "run-2", Machine: "m1", State: inventory.StatePending,
		Started: w.in(time.Hour),
	}))
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "run-3", Machine: "m2", State: inventory.StatePending,
		Started: w.in(2 * time.Hour),
	}))
	latest, err := w.Workflows.LatestWorkflow(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, "run-2", latest.Run)
	_, err = w.Workflows.LatestWorkflow(ctx, "m9")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	for _, c := range []struct {
		f    inventory.WorkflowFilter
		want []string
	}{
		{inventory.WorkflowFilter{}, []string{"run-3", "run-2", "run-1"}},
		{inventory.WorkflowFilter{Machine: "m1"}, []string{"run-2", "run-1"}},
		{inventory.WorkflowFilter{State: inventory.StateFailed}, []string{"run-1"}},
		{inventory.WorkflowFilter{Open: true, Limit: 1}, []string{"run-3"}},
		{inventory.WorkflowFilter{Open: true, Machine: "m1"}, []string{"run-2"}},
	} {
		list, err := w.Workflows.Workflows(ctx, c.f)
		require.NoError(t, err)
		var runs []string
		for _, x := range list {
			runs = append(runs, x.Run)
		}
		require.Equal(t, c.want, runs)
	}

	require.NoError(t, w.Agents.AppendLog(ctx, o, assignment(o, 0, 1).Key, "x"))
	require.ErrorIs(t, w.Workflows.DeleteWorkflow(ctx, o.Run, "ann"), inventory.ErrConflict, "it holds the grant")
	require.NoError(t, w.Grants.EndGrant(ctx, o))
	require.NoError(t, w.Workflows.DeleteWorkflow(ctx, o.Run, "ann"))
	require.ErrorIs(t, w.Workflows.DeleteWorkflow(ctx, o.Run, "ann"), inventory.ErrNotFound)
	_, err = w.Workflows.Log(ctx, o.Run, 0, 0)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	es, err := w.Events.Events(ctx, inventory.EventFilter{Run: o.Run})
	require.NoError(t, err)
	require.Empty(t, es)
}

func TestBMCJobs(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	j := inventory.BMCJob{
		Name: "off", Machine: "m1", Run: "r", State: inventory.StateRunning,
		Tasks: []inventory.BMCTask{{Power: "off"}, {BootDevice: &inventory.BootDevice{Device: "pxe"}}}, Started: w.clock.Now(),
	}
	require.NoError(t, w.BMCJobs.PutBMCJob(ctx, j))
	j.State = inventory.StateSuccess
	require.NoError(t, w.BMCJobs.PutBMCJob(ctx, j))
	got, err := w.BMCJobs.BMCJob(ctx, "m1", "off")
	require.NoError(t, err)
	require.Equal(t, j, got)
	require.NoError(t, w.BMCJobs.PutBMCJob(ctx, inventory.BMCJob{Name: "on", Machine: "m2", Started: w.in(time.Hour)}))
	list, err := w.BMCJobs.BMCJobs(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, []inventory.BMCJob{j}, list)
	list, err = w.BMCJobs.BMCJobs(ctx, "")
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "on", list[0].Name)
	_, err = w.BMCJobs.BMCJob(ctx, "m2", "off")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}
