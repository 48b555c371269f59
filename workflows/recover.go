package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// recovery is a run of Recover: an operation with one step for each machine. Several steps run at the same time.
type recovery struct {
	*operation
	in     contract.RecoverInput
	groups []int // sizes of the groups; record.Steps lists the machines of the first group, then of the second, and so on
	limit  int
	// busy counts the machines that are being installed. It is larger than limit only if machines continue after they have waited
	// for the operator.
	busy int
	open int // coroutines that have not ended; each installs one machine
	// paused is who has paused the recovery; "" = it is not paused.
	paused string
}

// Recover installs many machines, each by its own template: group after group, a few at a time. Once too many have failed, or one of the
// canaries, it starts no more machines. Each machine has its own run of Reprovision, which first wipes it, or of Provision if the
// machines are installed for the first time. These runs continue even if this workflow ends.
//
// An operator can pause the recovery: then it starts no machine until it is resumed.
//
// A machine that waits for the operator frees its slot for the next one. The recovery waits until each machine is
// installed or has failed. When its history is full, it continues as new under the same record. The workflow id is
// recover/<name>.
func Recover(ctx workflow.Context, in contract.RecoverInput) (out Recovered, err error) {
	before := in.Continued
	in.Continued = nil
	o, err := newOperation(ctx, inventory.TypeRecover, contract.RecoverID(in.Name), in.Name, in)
	if err != nil {
		return out, err
	}

	r := &recovery{operation: o, in: in, limit: cmp.Or(in.Concurrency, contract.DefaultConcurrency)}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, UpdatePause, r.setPaused,
		workflow.UpdateHandlerOptions{Validator: r.checkPause}); err != nil {
		return out, err
	}
	defer func() {
		switch {
		case workflow.IsContinueAsNewError(err):
			return
		case err != nil:
			err = r.end(ctx, err)
		default:
			err = r.finish(ctx)
		}
		out = r.result()
	}()
	if before != nil {
		if workflow.GetInfo(ctx).ContinuedExecutionRunID == "" {
			return out, newError(activities.TypeInvalid, "continued must be left out: only a running recovery sets this field")
		}
		if err := r.restoreState(ctx, *before); err != nil {
			return out, err
		}
	} else if err := r.planMachines(ctx); err != nil {
		return out, err
	}
	return out, r.recoverMachines(ctx)
}

// planMachines finds the machines and adds a step for each to the record.
func (r *recovery) planMachines(ctx workflow.Context) error {
	if err := r.showStep(ctx, inventory.PhasePlan, "finding the machines"); err != nil {
		return err
	}

	if err := invalid(r.in.Validate()); err != nil {
		return err
	}

	var groups [][]string
	q := activities.RecoverRequest{Machines: r.in.Machines, Selector: r.in.Selector, Order: r.in.Order}
	if err := execute(ctx, planning, &groups, do.RecoverTargets, q); err != nil {
		return err
	}

	if n := r.in.Canary; n > 0 && len(groups) > 0 { // then there is one group
		n = min(n, len(groups[0]))
		groups = [][]string{groups[0][:n], groups[0][n:]}
	}
	for _, g := range groups {
		r.groups = append(r.groups, len(g))
		for _, m := range g {
			r.record.Steps = append(r.record.Steps, r.newRow(m))
		}
	}
	return r.showProgress(ctx)
}

// newRow returns the step of a machine, in the state StepPending.
func (r *recovery) newRow(machine string) inventory.OperationStep {
	does := "wipe the machine and install it"
	if r.in.First {
		does = "install the machine"
	}
	return inventory.OperationStep{
		Name: machine, Machine: machine, Does: does, Waits: "until the installed system has phoned home",
		Undo: "none: the old contents of the disk are lost", State: inventory.StepPending,
	}
}

// checkPause refuses the update UpdatePause of a recovery that has ended.
func (r *recovery) checkPause(contract.PauseOrder) error {
	if inventory.Final(r.record.State) {
		return newError(activities.TypeInvalid, "the operation has already ended as %s", r.record.State)
	}
	return nil
}

// setPaused handles the update UpdatePause. The record is written by a regular activity: if this task were lost, the operator must not
// read that the recovery is paused.
func (r *recovery) setPaused(ctx workflow.Context, p contract.PauseOrder) error {
	r.paused = ""
	if p.Paused {
		r.paused = cmp.Or(p.By, "an operator")
	}
	if err := r.setProgress(ctx); err != nil {
		return err
	}
	return r.commitRecord(ctx)
}

// canariesDone reports whether all canaries are installed.
func (r *recovery) canariesDone() bool {
	return !slices.ContainsFunc(r.record.Steps[:r.groups[0]], func(s inventory.OperationStep) bool { return s.State != inventory.StepDone })
}

// reasonToStop returns why no further machine of this group may be started, or "".
func (r *recovery) reasonToStop(group int) string {
	if bad := r.bad(); r.in.AbortAfter > 0 && bad >= r.in.AbortAfter {
		return fmt.Sprintf("not begun: %d machines had already failed or waited for an operator", bad)
	}
	if r.in.Canary == 0 {
		return ""
	}
	for _, s := range r.record.Steps[:r.groups[0]] {
		if s.State == inventory.StepFailed || group > 0 && s.State != inventory.StepDone {
			return fmt.Sprintf("not begun: the canary %s was not installed", s.Machine)
		}
	}
	return ""
}

// restoreState restores the state of the previous execution.
func (r *recovery) restoreState(ctx workflow.Context, s contract.RecoverState) error {
	r.groups, r.paused = s.Groups, s.Paused
	r.record.Started, r.record.Step = s.Started, inventory.PhaseAction
	// An execution that was reset gets a record of its own, because the record of the first execution may be final.
	if info := workflow.GetInfo(ctx); info.OriginalRunID == "" || info.OriginalRunID == info.WorkflowExecution.RunID {
		r.record.Run, r.record.Seq, r.record.Execution = s.Run, s.Seq, info.WorkflowExecution.RunID
	}

	for _, m := range s.Machines {
		row := r.newRow(m.Machine)
		row.State, row.Run, row.Message = m.State, m.Run, m.Message
		row.Since, row.Ended, row.Asked, row.Waited = m.Since, m.Ended, m.Asked, m.Waited
		r.record.Steps = append(r.record.Steps, row)
	}
	return r.showProgress(ctx)
}

// historyFull reports whether the recovery should continue as new because its history is nearly full. It returns false after a
// cancellation.
func (r *recovery) historyFull(ctx workflow.Context) bool {
	return ctx.Err() == nil && workflow.GetInfo(ctx).GetContinueAsNewSuggested()
}

// maxCarried limits how many bytes of a machine's message the next execution gets, because Temporal limits the input to 2 MiB. A
// machine that still waits reports its whole message again.
const maxCarried = 200

// continueAsNew ends this execution; the next execution starts with the state of this one. The runs of the machines go on, and the
// state contains the ids of these runs.
func (r *recovery) continueAsNew(ctx workflow.Context) error {
	begun := func() bool {
		return !slices.ContainsFunc(r.record.Steps,
			func(s inventory.OperationStep) bool { return s.State == inventory.StepRunning && s.Run == "" })
	}

	if err := workflow.Await(ctx, func() bool { return begun() && workflow.AllHandlersFinished(ctx) }); err != nil {
		return r.awaitAll(ctx, err)
	}

	s := contract.RecoverState{Run: r.record.Run, Started: r.record.Started, Seq: r.record.Seq, Groups: r.groups, Paused: r.paused}
	for _, row := range r.record.Steps {
		message := row.Message[:min(len(row.Message), maxCarried)]
		if row.State == inventory.StepDone {
			message = ""
		}
		s.Machines = append(s.Machines, contract.RecoverMachine{
			Machine: row.Machine, State: row.State, Run: row.Run, Message: strings.ToValidUTF8(message, ""),
			Since: row.Since, Ended: row.Ended, Asked: row.Asked, Waited: row.Waited,
		})
	}

	in := r.in
	in.Continued = &s
	return workflow.NewContinueAsNewError(ctx, inventory.TypeRecover, in)
}

// recoverMachines installs the machines, group after group.
func (r *recovery) recoverMachines(ctx workflow.Context) error {
	row := 0
	for group, size := range r.groups {
		for range size {
			s := &r.record.Steps[row]
			row++
			if s.Run != "" && (s.State == inventory.StepRunning || s.State == inventory.StepWaiting) {
				r.startMachine(ctx, s) // the previous execution has started this machine's run
				continue
			}
			if s.State != inventory.StepPending {
				continue
			}
			mayStart := func() bool { return r.busy < r.limit && r.paused == "" || r.historyFull(ctx) }
			if err := workflow.Await(ctx, mayStart); err != nil {
				return r.awaitAll(ctx, err)
			}
			if r.historyFull(ctx) {
				return r.continueAsNew(ctx)
			}
			if why := r.reasonToStop(group); why != "" {
				s.State, s.Message = inventory.StepSkipped, why
				continue
			}
			r.startMachine(ctx, s)
		}
		isCanary := r.in.Canary > 0 && group == 0 // then wait for those, too, that wait for the operator
		ended := func() bool { return r.busy == 0 && (!isCanary || r.open == 0) || r.historyFull(ctx) }
		if err := workflow.Await(ctx, ended); err != nil {
			return r.awaitAll(ctx, err)
		}
	}

	if r.open > 0 {
		r.noteProgress(ctx) // no machine is left to start, so all open ones may now be waiting for the operator
	}

	if err := workflow.Await(ctx, func() bool { return r.open == 0 || r.historyFull(ctx) }); err != nil {
		return r.awaitAll(ctx, err)
	}

	if r.open > 0 {
		return r.continueAsNew(ctx)
	}

	// If ctx was canceled while the record was written, the waits for the operator have ended without an outcome.
	if err := ctx.Err(); err != nil && r.counts()[inventory.StepWaiting] > 0 {
		return err
	}
	return nil
}

// awaitAll waits until every machine that was started has ended, and returns err.
func (r *recovery) awaitAll(ctx workflow.Context, err error) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if e := workflow.Await(ctx, func() bool { return r.open == 0 }); e != nil {
		return e
	}
	return err
}

// startMachine starts a coroutine that installs one machine.
func (r *recovery) startMachine(ctx workflow.Context, s *inventory.OperationStep) {
	r.open++
	if s.State != inventory.StepWaiting {
		r.busy++
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		r.recoverMachine(ctx, s)
		r.open--
	})
}

// recoverMachine installs one machine. It frees the machine's slot while the machine waits
// for the operator.
func (r *recovery) recoverMachine(ctx workflow.Context, s *inventory.OperationStep) {
	for {
		var found activities.Outcome
		var err error
		switch {
		case s.State == inventory.StepWaiting:
			found, err = r.awaitAnswer(ctx, s)
			if temporal.IsCanceledError(err) {
				return // the machine's run continues and still waits for the operator
			}
			r.busy++
		case s.Run != "":
			found, err = r.awaitRun(ctx, s.Machine, s.Run)
		default:
			s.State, s.Since = inventory.StepRunning, workflow.Now(ctx)
			r.noteProgress(ctx)
			found, err = r.installMachine(ctx, s)
		}
		r.recordOutcome(ctx, s, found, err)
		if s.State != inventory.StepRunning {
			r.busy--
		}
		if s.State != inventory.StepRunning && s.State != inventory.StepWaiting {
			return
		}
	}
}

// installMachine starts the run of a machine and waits for its outcome.
func (r *recovery) installMachine(ctx workflow.Context, s *inventory.OperationStep) (activities.Outcome, error) {
	in := contract.ProvisionInput{
		Machine: s.Machine, Template: r.in.Template, Image: r.in.Image, First: r.in.First, Parent: r.record.ID, By: r.in.By,
	}
	kind := inventory.TypeReprovision
	if r.in.First {
		kind = inventory.TypeProvision
	}
	return r.runMachine(ctx, s, kind, s.Machine, in)
}

// awaitAnswer waits until the operator has answered the question of a machine's run.
func (r *recovery) awaitAnswer(ctx workflow.Context, s *inventory.OperationStep) (found activities.Outcome, err error) {
	err = execute(ctx, awaiting, &found, do.AwaitRun, activities.OutcomeRequest{Run: s.Run, Asking: true, Known: s.Message})
	return found, err
}

// recordOutcome sets the state of a machine's step from the outcome or the error, and writes the record.
func (r *recovery) recordOutcome(ctx workflow.Context, s *inventory.OperationStep, found activities.Outcome, err error) {
	now := workflow.Now(ctx)
	s.Message, s.Ended = found.Message, now
	s.Resume(now)
	switch {
	case err != nil:
		s.State, s.Message = inventory.StepFailed, messageOf(err)
		if temporal.IsCanceledError(err) {
			s.Message = "cancelled"
		}
	case found.State == inventory.StateSuccess:
		s.State = inventory.StepDone
	case inventory.Final(found.State):
		s.State = inventory.StepFailed
	case found.Asks:
		s.Ended = time.Time{}
		s.Wait(now)
	default:
		s.State, s.Ended, s.Message = inventory.StepRunning, time.Time{}, ""
	}

	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	r.noteProgress(ctx)
}

// noteProgress is for callers that cannot handle an error: it does what showProgress does, but only logs an error. The next write
// of the record makes up for the lost one.
func (r *recovery) noteProgress(ctx workflow.Context) {
	if err := r.showProgress(ctx); err != nil {
		r.log.Error("recording a recovery", "error", err)
	}
}

// counts returns the number of machines by the state of their steps.
func (r *recovery) counts() map[string]int {
	n := map[string]int{}
	for _, s := range r.record.Steps {
		n[s.State]++
	}
	return n
}

// bad returns how many machines have failed or wait for the operator.
func (r *recovery) bad() int {
	n := r.counts()
	return n[inventory.StepFailed] + n[inventory.StepWaiting]
}

// summary returns the progress of the recovery as text.
func (r *recovery) summary() string {
	n := r.counts()
	text := fmt.Sprintf("%d of %d machines installed", n[inventory.StepDone], len(r.record.Steps))
	for _, x := range []struct{ state, words string }{
		{inventory.StepRunning, "under way"},
		{inventory.StepPending, "to come"},
		{inventory.StepFailed, "failed"},
		{inventory.StepWaiting, "waiting for an operator"},
		{inventory.StepSkipped, "not begun"},
	} {
		if n[x.state] > 0 {
			text += fmt.Sprintf(", %d %s", n[x.state], x.words)
		}
	}
	return text
}

// showProgress writes the progress to the record.
func (r *recovery) showProgress(ctx workflow.Context) error {
	if err := r.setProgress(ctx); err != nil {
		return err
	}
	return r.writeRecord(ctx)
}

// setProgress sets the progress in the record. If all machines that could go on wait for the operator, the record shows that the
// recovery waits too.
func (r *recovery) setProgress(ctx workflow.Context) error {
	step, next := inventory.PhaseAction, ""
	if len(r.record.Steps) == 0 {
		step = inventory.PhasePlan
	}
	n := r.counts()
	startsMore := n[inventory.StepPending] > 0 && (r.in.Canary == 0 || r.canariesDone())
	if n[inventory.StepWaiting] > 0 && n[inventory.StepRunning] == 0 && !startsMore {
		step, next = inventory.PhaseWaiting, "ingot recover status "+r.in.Name
	}
	text := r.summary()
	if r.paused != "" {
		text += "; paused by " + r.paused
		next = "ingot operation resume " + r.record.ID
	}
	r.record.Next = next
	return r.setStep(ctx, step, "%s", text)
}

// finish writes the final record of a recovery that was not aborted.
func (r *recovery) finish(ctx workflow.Context) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	state, phase, next := inventory.StateSuccess, inventory.PhaseDone, ""
	if r.counts()[inventory.StepDone] < len(r.record.Steps) {
		state, phase, next = inventory.StateFailed, inventory.PhaseFailed, "ingot recover status "+r.in.Name
	}
	if err := r.recordEnd(ctx, state, phase, r.summary(), next); err != nil {
		return err
	}
	return workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) })
}

// result returns the result of the workflow.
func (r *recovery) result() Recovered {
	out := Recovered{State: r.record.State, Message: r.record.Message, Machines: []RecoveredMachine{}}
	for _, s := range r.record.Steps {
		m := RecoveredMachine{Machine: s.Machine, Run: s.Run, Message: s.Message, Outcome: OutcomeFailed}
		switch s.State {
		case inventory.StepDone:
			m.Outcome = OutcomeInstalled
		case inventory.StepWaiting:
			m.Outcome = OutcomeWaiting
		case inventory.StepPending, inventory.StepSkipped:
			m.Outcome = OutcomeNotBegun
		}
		out.Machines = append(out.Machines, m)
	}
	return out
}
