package workflows_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func tokenOf(epoch string) []byte {
	sum := sha256.Sum256([]byte("token-nonce-" + epoch))
	return sum[:]
}

// TestDecisionSentTwiceAnswersOneQuestion: a decision answers only the question that it
// names, by signal and by update, early and late.
func TestDecisionSentTwiceAnswersOneQuestion(t *testing.T) {
	w := newWorld(t, nil)
	w.disks = nil
	refused := 0
	w.answer = func(q inventory.Question) *contract.Decision {
		d := contract.Decision{Question: q.ID, Choice: contract.Retry}
		if len(w.asked) == 3 {
			d.Choice = contract.Abort
		}
		for _, late := range []time.Duration{0, time.Second, 10 * time.Minute} {
			w.after(time.Hour+late, func() { w.env.SignalWorkflow(workflows.SignalDecide, d) })
			w.after(time.Hour+late+time.Second, func() {
				w.env.UpdateWorkflow(workflows.UpdateDecide, q.ID+late.String(), &updated{rejected: func(error) { refused++ }}, d)
			})
		}
		return &d
	}
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 3)
	for i := 1; i < len(w.asked); i++ {
		require.NotEqual(t, w.asked[i-1].ID, w.asked[i].ID)
		require.GreaterOrEqual(t, w.asked[i].Since.Sub(w.asked[i-1].Since), time.Hour, "a decision for the question before answered this one")
	}
	require.Equal(t, 6, refused, "each update of a question that was answered or gone")
	w.closed()
}

// updated are the callbacks of an update.
type updated struct{ rejected func(error) }

func (*updated) Accept()             {}
func (u *updated) Reject(err error)  { u.rejected(err) }
func (*updated) Complete(any, error) {}

// TestPolicyPause: an operator decides about a failed action.
func TestPolicyPause(t *testing.T) {
	for choice, c := range map[string]struct {
		fails    string
		attempts []int
		message  string
		cycles   int
	}{
		contract.Retry:   {attempts: []int{1, 2, 1}, cycles: 1},
		contract.Skip:    {attempts: []int{1, 1, 1}, cycles: 1, message: "skipped by ann: disk on fire"},
		contract.Restart: {attempts: []int{2, 2, 1}, cycles: 2},
		contract.Abort:   {attempts: []int{1, 1, 0}, cycles: 1, message: "disk on fire", fails: "disk on fire"},
	} {
		t.Run(choice, func(t *testing.T) {
			w := newWorld(t, nil)
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Key.Action == 1 && a.Key.Attempt == 1 {
					return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
				}
				return &action.Result{Key: a.Key, State: action.Success}
			}
			w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: choice, By: "ann"} }
			err := w.run(contract.ProvisionInput{Machine: machine, Policy: contract.Pause})
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
			} else {
				require.NoError(t, err)
			}
			require.Len(t, w.asked, 1)
			require.Equal(t, []string{contract.Retry, contract.Skip, contract.Restart, contract.Abort}, w.asked[0].Choices)
			require.Equal(t, "1.1.1", w.asked[0].ID, "epoch, action, attempt")
			var attempts []int
			for _, a := range w.record().Actions {
				attempts = append(attempts, a.Attempt)
			}
			require.Equal(t, c.attempts, attempts)
			require.Equal(t, c.message, w.record().Actions[1].Message)
			require.Equal(t, c.cycles, w.cycles)
			w.closed()
		})
	}
}

// TestAChangedImageIsAsked: an action that fails because the file of its image was changed under the plan
// asks, also under the policy that fails; any other failure does not.
func TestAChangedImageIsAsked(t *testing.T) {
	for choice, fails := range map[string]bool{contract.Retry: false, contract.Abort: true} {
		t.Run(choice, func(t *testing.T) {
			w := newWorld(t, nil)
			changed, began := false, false
			w.do.Site.ImageStored = func(_ context.Context, i inventory.PlannedImage) error {
				if changed {
					return fmt.Errorf("image %q: /mnt/images/a.raw has changed since it was added: %w", i.Name, inventory.ErrConflict)
				}
				return nil
			}
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Key.Action == 0 && !began {
					changed, began = true, true
					return &action.Result{Key: a.Key, State: action.Failed, Message: "the server answers 409"}
				}
				return &action.Result{Key: a.Key, State: action.Success}
			}
			w.answer = func(inventory.Question) *contract.Decision {
				changed = false // it is put back
				return &contract.Decision{Choice: choice, By: "ann"}
			}
			err := w.run(contract.ProvisionInput{Machine: machine})
			if fails {
				require.ErrorContains(t, err, "the server answers 409")
			} else {
				require.NoError(t, err)
			}
			require.Len(t, w.asked, 1)
			require.Equal(t, []string{contract.Retry, contract.Abort}, w.asked[0].Choices)
			require.Contains(t, w.asked[0].Text, "the server answers 409")
			require.Contains(t, w.asked[0].Text, "/mnt/images/a.raw has changed since it was added")
			w.closed()
		})
	}
	w := newWorld(t, nil)
	var gone error
	w.do.Site.ImageStored = func(context.Context, inventory.PlannedImage) error { return gone }
	w.agentFor = func(a inventory.Assignment) *action.Result {
		gone = inventory.ErrNotFound // a file of this server: the operator cannot put it back
		return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
	}
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "disk on fire")
	require.Empty(t, w.asked)
}

// TestPolicyPauseAfterThePowerWasTaken: an agent that timed out and did not stop is switched
// off; the retry starts with another boot.
func TestPolicyPauseAfterThePowerWasTaken(t *testing.T) {
	w := newWorld(t, nil)
	w.short("")
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 0 && a.Key.Attempt == 1 {
			var beat func()
			beat = func() { // lives, and hears no order
				if len(w.asked) == 0 && w.cycles == 1 {
					w.hear(a.Boot)
					w.after(10*time.Second, beat)
				}
			}
			beat()
			return nil
		}
		require.Equal(t, 2, a.Boot, "handed to an agent that has no power")
		return &action.Result{Key: a.Key, State: action.Success}
	}
	w.answer = func(inventory.Question) *contract.Decision {
		require.False(t, w.on)
		return &contract.Decision{Choice: contract.Retry}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Template: "short", Policy: contract.Pause}))
	require.Contains(t, w.asked[0].Text, "did not end within its timeout")
	require.Equal(t, 2, w.cycles)
	w.closed()
}

func TestUnknownPolicyTouchesNothing(t *testing.T) {
	w := newWorld(t, nil)
	require.ErrorContains(
		t,
		w.run(contract.ProvisionInput{Machine: machine, Policy: "hope"}),
		`policy: invalid value "hope"; must be one of [fail pause]`,
	)
	require.Zero(t, w.cycles)
	es, err := w.Store.Events.Events(t.Context(), inventory.EventFilter{Machine: machine})
	require.NoError(t, err)
	var phases []string
	for _, e := range es {
		if e.Kind == inventory.EventPhase {
			phases = append(phases, e.Message)
		}
	}
	require.Equal(
		t,
		[]string{"plan: rendering the template", `failed: policy: invalid value "hope"; must be one of [fail pause]`},
		phases,
		"a run that fails in plan leaves events, too",
	)
}

// TestClaimConflictStopsTheOldAgentFirst (S5): after a restart during an action, no agent writes
// before the power of the agent that may be writing was cut, or an operator without a BMC was
// asked to cut it.
func TestClaimConflictStopsTheOldAgentFirst(t *testing.T) {
	conflict := func(w *world, then func(a inventory.Assignment)) {
		w.agentFor = func(a inventory.Assignment) *action.Result {
			if a.Key.Action == 0 && a.Key.Attempt == 1 {
				w.after(time.Minute, func() { w.signal(inventory.EventClaimConflict, a.Epoch, a.Boot, nil) })
				return nil
			}
			then(a)
			return &action.Result{Key: a.Key, State: action.Success}
		}
	}
	t.Run("with a BMC", func(t *testing.T) {
		w := newWorld(t, nil)
		conflict(w, func(inventory.Assignment) { require.GreaterOrEqual(t, w.offs, 2, "a second writer") })
		w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Restart} }
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		w.closed()
	})
	t.Run("without", func(t *testing.T) {
		w := newWorld(t, func(m *inventory.Machine) { m.BMC = nil })
		conflict(w, func(inventory.Assignment) { require.Len(t, w.asked, 1, "a second writer") })
		press := func() {
			w.env.SignalWorkflow(workflows.SignalPoweredOn, nil)
			w.after(time.Minute, w.boots)
		}
		w.answer = func(q inventory.Question) *contract.Decision {
			require.Contains(t, q.Text, "switch the machine off before you choose restart")
			w.after(2*time.Hour, press)
			return &contract.Decision{Choice: contract.Restart}
		}
		w.after(time.Minute, press)
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Len(t, w.asked, 1)
		w.closed()
	})
}

// TestRunTakesMachineArmedByHand: the rescue agent is fenced from then on. The operator
// cannot take a machine from a run.
func TestRunTakesMachineArmedByHand(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	g, err := w.Store.Grants.ArmByHand(ctx, machine, "ann", time.Now().Add(time.Hour))
	require.NoError(t, err)
	w.on = true
	w.claims() // the agent of the rescue
	rescue := tokenOf("1-1")
	_, err = w.Store.Agents.AgentByToken(ctx, rescue)
	require.NoError(t, err)

	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 0 {
			_, err := w.Store.Agents.AgentByToken(ctx, rescue)
			require.ErrorIs(t, err, inventory.ErrFenced, "it is told 410")
			_, err = w.Store.Grants.ArmByHand(ctx, machine, "bob", time.Now().Add(time.Hour))
			require.ErrorIs(t, err, inventory.ErrConflict)
			require.ErrorContains(t, err, "machine/um760")
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, g.Epoch+1, w.record().Epoch)
	require.Equal(t, 1, w.offs, "it was switched off before it was started")
	w.closed()
	_, err = w.Store.Grants.ArmByHand(ctx, machine, "ann", time.Now().Add(time.Hour))
	require.NoError(t, err, "afterwards it is free")
}

// TestLateEffectsOfAnEarlierRun: effects that a terminated run had under way do not change
// the next run.
func TestLateEffectsOfAnEarlierRun(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	old, err := w.Store.Grants.TakeGrant(ctx, machine, "old", workflows.MachineID(machine), false)
	require.NoError(t, err)
	_, err = w.Store.Grants.AllowBoot(ctx, old.Owner, 1, time.Now().Add(time.Hour))
	require.NoError(t, err)
	w.claims()
	_, err = w.do.Plan(ctx, activities.PlanRequest{Run: "old", Machine: machine})
	require.NoError(t, err)
	first := action.Key{Epoch: old.Epoch, Attempt: 1}
	require.NoError(t, w.do.Assign(ctx, activities.AssignRequest{Owner: old.Owner, Boot: 1, Key: first}))
	require.NoError(
		t,
		w.Store.Workflows.PutWorkflow(
			ctx,
			inventory.Workflow{Run: "old", Machine: machine, State: inventory.StateFailed, Phase: inventory.PhaseFailed, Seq: 9},
		),
	)
	record := inventory.Workflow{Run: "old", Machine: machine, State: inventory.StateRunning, Phase: inventory.PhaseAction, Seq: 10}
	token := tokenOf("1-1")

	fenced := func(err error) {
		t.Helper()
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app)
		require.Equal(t, activities.TypeFenced, app.Type())
		require.True(t, app.NonRetryable())
	}
	late := 0
	w.agentFor = func(a inventory.Assignment) *action.Result {
		late++
		before, err := w.Store.Grants.Grant(ctx, machine)
		require.NoError(t, err)
		offs, cycles, resets, set := w.offs, w.cycles, w.resets, len(w.boot)
		fenced(w.act(w.do.PowerOff, old.Owner))
		fenced(w.act(w.do.ColdStart, old.Owner))
		fenced(w.act(w.do.BMCTasks, old.Owner, inventory.BMCJob{Name: "j", Tasks: []inventory.BMCTask{{Power: "off"}}}))
		for _, q := range []activities.PowerRequest{{Boot: 2}, {Boot: 2, Warm: true}, {Boot: 2, ResetBMC: true}, {Boot: 1}} {
			q.Owner, q.For = old.Owner, time.Hour
			fenced(w.act(w.do.Power, q))
		}
		fenced(w.act(w.do.Assign, activities.AssignRequest{Owner: old.Owner, Boot: 1, Key: action.Key{Epoch: old.Epoch, Action: 1, Attempt: 1}}))
		fenced(w.act(w.do.Stop, activities.StopRequest{Owner: old.Owner, Key: first}))
		fenced(w.act(w.do.Bind, activities.BindRequest{Owner: old.Owner}))
		fenced(w.act(w.do.Evidence, activities.EvidenceRequest{Owner: old.Owner, Key: first}))
		fenced(w.act(w.do.OpenSecrets, activities.WindowRequest{Owner: old.Owner, For: 24 * time.Hour}))
		fenced(w.act(w.do.CloseSecrets, old.Owner))
		fenced(w.act(w.do.RenewNetboot, activities.WindowRequest{Owner: old.Owner, For: 24 * time.Hour}))
		fenced(w.act(w.do.Disarm, old.Owner))
		fenced(w.act(w.do.MoreBoots, old.Owner))
		require.NoError(t, w.do.End(ctx, old.Owner), "ending twice is not an error, and ends nothing")
		require.NoError(t, w.do.Record(ctx, record, nil))
		rec, err := w.Store.Workflows.Workflow(ctx, "old")
		require.NoError(t, err)
		require.Equal(t, inventory.StateFailed, rec.State, "the record that is final stays")
		_, err = w.Store.Agents.AgentByToken(ctx, token)
		require.ErrorIs(t, err, inventory.ErrFenced)
		_, err = w.Store.Assignments.Report(ctx, old.Owner, 1, action.Result{Key: first, ID: "late", State: action.Success})
		require.ErrorIs(t, err, inventory.ErrFenced)
		_, err = w.Store.Agents.Redeem(
			ctx,
			inventory.Redemption{
				Owner:        old.Owner,
				Boot:         1,
				Hello:        action.Hello{Machine: machine, Nonce: "another", MAC: mac},
				TokenFor:     func(n string) string { return n },
				SecretsUntil: time.Now().Add(time.Hour),
			},
		)
		require.ErrorIs(t, err, inventory.ErrNotFound)

		after, err := w.Store.Grants.Grant(ctx, machine)
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.Equal(t, []int{offs, cycles, resets, set}, []int{w.offs, w.cycles, w.resets, len(w.boot)}, "the BMC was written to")
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 3, late)
	require.Equal(t, old.Epoch+1, w.record().Epoch)
	w.untouched()
}

// TestRunThatWasResetAsksAndANewRunGoesOn: a reset gives the same history another run id.
// The grant belongs to the run before: all effects are fenced, an operator is asked, and
// after "abort" a new run takes the machine.
func TestRunThatWasResetAsksAndANewRunGoesOn(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	before, err := w.Store.Grants.TakeGrant(ctx, machine, "before-the-reset", workflows.MachineID(machine), false)
	require.NoError(t, err)
	w.replayed = &before // what the history says of Arm
	w.on = true
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 1)
	require.Equal(t, []string{contract.Abort}, w.asked[0].Choices)
	require.Zero(t, w.offs)
	require.Zero(t, w.cycles)
	g, err := w.Store.Grants.Grant(ctx, machine)
	require.NoError(t, err)
	require.Equal(t, before.Owner, g.Owner, "what it does not own it does not end")

	next := w.another("next")
	require.NoError(t, next.run(contract.ProvisionInput{Machine: machine}))
	g, err = next.Store.Grants.Grant(ctx, machine)
	require.NoError(t, err)
	require.Equal(t, before.Epoch+1, g.Epoch)
	next.untouched()
}

// act runs an activity as a worker does, in parallel to the workflow.
func (w *world) act(activity any, args ...any) error {
	env := w.suite.NewTestActivityEnvironment()
	env.RegisterActivity(w.do)
	env.SetTestTimeout(workflows.Hung)
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&activities.Errors{}}})
	_, err := env.ExecuteActivity(activity, args...)
	return err
}

// TestDecisionForADiskThatIsNotThere is refused as an update, names the disks, and leaves the question open.
func TestDecisionForADiskThatIsNotThere(t *testing.T) {
	w := newWorld(t, nil)
	w.disks = []action.Disk{
		{Path: "/dev/sda", Serial: "S1", Size: 1 << 30, Blank: true},
		{Path: "/dev/sdb", WWN: "0x5", Size: 1 << 30, Blank: true},
		{Path: "/dev/sdc", Serial: "S3", Size: 1 << 30, ReadOnly: true},
	}
	var refused []string
	w.answer = func(q inventory.Question) *contract.Decision {
		if len(w.asked) > 1 {
			return nil // a refused decision asked again: abort
		}
		require.True(t, strings.HasSuffix(w.last.Next, "--choice retry --disk-serial SERIAL"), w.last.Next)
		for i, d := range []contract.Decision{
			{Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "NOPE"}},
			{Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "S3"}},
			{Choice: contract.Abort, DiskSelector: &inventory.DiskSelector{Serial: "S1"}},
		} {
			d.Question = q.ID
			w.after(time.Minute, func() {
				u := &updated{rejected: func(err error) { refused = append(refused, err.Error()) }}
				w.env.UpdateWorkflow(workflows.UpdateDecide, fmt.Sprint(q.ID, i), u, d)
			})
		}
		return &contract.Decision{Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{WWN: "0x5"}}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1, "a refused decision asks no second question")
	require.Len(t, refused, 3)
	for _, text := range refused[:2] {
		require.Contains(t, text, `no disk matches the disk selector; the machine has /dev/sda serial "S1", /dev/sdb wwn "0x5", `+
			`/dev/sdc serial "S3" (read-only)`)
	}
	require.Contains(t, refused[2], `choice "abort" uses no disk`)
	require.Equal(t, "0x5", w.record().Disk.WWN)
	w.closed()
}
