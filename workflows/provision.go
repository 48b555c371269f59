package workflows

import (
	"errors"
	"fmt"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// provision is a run of Provision.
type provision struct {
	*run
	in    ProvisionInput
	wipe  bool // before anything else
	plan  activities.Planned
	disk  *action.Disk
	doing *action.Key // assigned and not known to have ended
	tries int         // retries of Retries.Count that were used
	binds int         // times that the disk was chosen: it numbers the questions
}

// Provision installs the machine's template on it. Its id is
// machine/<machine>; any other is refused before anything is touched.
func Provision(ctx workflow.Context, in ProvisionInput) (Outcome, error) {
	return provisionAs(ctx, ProvisionType, in, false)
}

// provisionAs is Provision under another name; with wipe, the bound disk is
// wiped first, by the agent of the same boot.
func provisionAs(ctx workflow.Context, typ string, in ProvisionInput, wipe bool) (out Outcome, err error) {
	r, err := newRun(ctx, typ, MachineID(in.Machine), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	p := &provision{run: r, in: in, wipe: wipe}
	// The undo is registered before the do.
	defer func() {
		if err != nil {
			err = p.halt(ctx, err)
		}
		err = r.end(ctx, err)
		out = Outcome{State: r.record.State, Message: r.record.Message}
	}()
	err = p.install(ctx)
	for lost(err) {
		err = r.lament(ctx, err)
	}
	return out, err
}

func (p *provision) install(ctx workflow.Context) error {
	if err := p.makePlan(ctx); err != nil {
		return err
	}
	if err := p.arm(ctx, false); err != nil {
		return err
	}
	p.budget = p.plan.GlobalTimeout.Duration()
	p.wake(ctx)
	for {
		err := p.carryOut(ctx)
		if !errors.Is(err, errRestart) {
			return err
		}
		if err := p.rearm(ctx); err != nil {
			return err
		}
		p.doing, p.disk, p.record.Disk = nil, p.plan.Disk, nil
		p.resetActions(p.plan.From)
	}
}

// carryOut is everything under one grant.
func (p *provision) carryOut(ctx workflow.Context) error {
	if p.plan.Installer != nil {
		return p.handOver(ctx)
	}
	if err := p.begin(ctx); err != nil {
		return err
	}
	if err := p.bind(ctx); err != nil {
		return err
	}
	if err := p.actions(ctx); err != nil {
		return err
	}
	return p.leave(ctx)
}

func (p *provision) makePlan(ctx workflow.Context) error {
	if err := p.phase(ctx, inventory.PhasePlan, "rendering the template"); err != nil {
		return err
	}
	switch p.in.Policy {
	case "", Fail, Pause:
	default:
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("policy %q is neither %s nor %s", p.in.Policy, Fail, Pause), activities.TypeInvalid, nil)
	}
	switch p.in.Retries.From {
	case "", "failed-step", "start":
	default:
		return temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("retries.from %q: write failed-step or start", p.in.Retries.From), activities.TypeInvalid, nil)
	}
	q := activities.PlanRequest{
		Run: p.owner.Run, Machine: p.in.Machine, Template: p.in.Template, Image: p.in.Image, HardwareMap: p.in.HardwareMap, Resume: p.in.Resume,
		Wipe: p.wipe,
	}
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, planning), do.Plan, q).Get(ctx, &p.plan); err != nil {
		return err
	}
	p.manual, p.plannedAs = p.plan.Manual, p.plan.Run
	p.disk = p.plan.Disk
	w := &p.record
	w.Template, w.Image, w.Digest, w.Evidence = p.plan.Template, p.plan.Image, p.plan.Digest, p.plan.Evidence
	w.Installer = p.plan.Installer != nil
	for i, a := range p.plan.Actions {
		rec := inventory.ActionRecord{Name: a.Name, Task: a.Task, Image: a.Image, Timeout: a.Timeout, State: action.Pending}
		if i < p.plan.From {
			rec.State, rec.Message = action.Success, "done by run "+p.in.Resume
		}
		w.Actions = append(w.Actions, rec)
	}
	return nil
}

// bind settles which disk is written. The agent stays up while a person is asked.
func (p *provision) bind(ctx workflow.Context) error {
	writes := false
	for _, a := range p.plan.Actions[p.plan.From:] {
		writes = writes || a.Writes
	}
	if !writes {
		return nil
	}
	if err := p.phase(ctx, inventory.PhaseBind, "choosing the disk"); err != nil {
		return err
	}
	q := activities.BindRequest{Owner: p.owner, Disk: p.disk}
	if d := p.record.Disk; d != nil && (d.Serial != "" || d.WWN != "") {
		// Bound earlier in this run: what begins on a disk goes on there.
		q.Selector = &inventory.DiskSelector{Serial: d.Serial, WWN: d.WWN}
	}
	for {
		p.binds++
		var b activities.Bound
		if err := p.quickly(ctx, do.Bind, q, &b); err != nil {
			return err
		}
		if b.Disk != nil {
			p.disk, p.record.Disk = b.Disk, b.Disk
			return nil
		}
		d, err := p.ask(ctx, fmt.Sprintf("%d.bind.%d", p.owner.Epoch, p.binds), b.Reason, []string{Retry, Abort}, b.Disks)
		if err != nil {
			return err
		}
		if d.DiskSelector != nil {
			q.Selector, q.Disk = d.DiskSelector, nil
		}
	}
}

// actions carries out everything that does not leave the agent.
func (p *provision) actions(ctx workflow.Context) error {
	p.record.State = inventory.StateRunning
	for i := p.plan.From; i < len(p.plan.Actions); i++ {
		if p.plan.Actions[i].Leaving {
			if i = p.firstUndone(i); i < 0 {
				return nil
			}
		}
		if p.record.Actions[i].State == action.Success {
			continue // only a seed is carried out again
		}
		err := p.act(ctx, i)
		if err == nil {
			if p.off {
				// Its success came while its power was being taken.
				if err := p.again(ctx); err != nil {
					return err
				}
			}
			continue
		}
		choice, err := p.failed(ctx, i, err)
		if err != nil {
			return err
		}
		if choice == Restart || p.off {
			if err := p.again(ctx); err != nil {
				return err
			}
		}
		switch choice {
		case Retry:
			i-- // the same step again
		case Restart:
			// Also the actions that an earlier run did: the image is written again, and
			// whatever interrupts it must not go on behind it.
			p.plan.From = 0
			p.resetActions(0)
			i = -1
		}
	}
	return nil
}

// firstUndone returns the first action before the last one that has to be carried out
// again, see reseedLater; -1: none.
func (p *provision) firstUndone(last int) int {
	return slices.IndexFunc(p.record.Actions[:last], func(a inventory.ActionRecord) bool { return a.State != action.Success })
}

// reseedLater has what an earlier boot wrote of the instance id written again by the
// present one. The agent of that boot is gone, and its machine may have booted
// from the disk since: for cloud-init that instance is used up.
func (p *provision) reseedLater() {
	for i, planned := range p.plan.Actions {
		if a := &p.record.Actions[i]; planned.Seed && a.State == action.Success {
			a.State, a.Message = action.Pending, fmt.Sprintf("again, by the agent of boot %d", p.boot)
		}
	}
}

// resetActions makes the actions from an index on pending again.
func (p *provision) resetActions(from int) {
	for i := range p.record.Actions[from:] {
		a := &p.record.Actions[from+i]
		a.State, a.Message, a.Seconds = action.Pending, "", 0
	}
}

// failed decides what follows a failed action: Retry, Skip, Restart, or an
// error that ends the run. First its retries are used up, then the policy says.
func (p *provision) failed(ctx workflow.Context, i int, err error) (string, error) {
	a := &p.record.Actions[i]
	failed := is(err, typeActionFailed)
	if failed && p.tries < p.in.Retries.Count {
		p.tries++
		pause := min(firstPause<<min(p.tries-1, 10), lastPause)
		if err := p.phase(ctx, inventory.PhaseAction, "%s failed: %s; again in %s", a.Name, a.Message, pause); err != nil {
			return "", err
		}
		if _, err := p.await(ctx, pause, func() bool { return false }); err != nil {
			return "", err
		}
		if p.in.Retries.From == "start" {
			return Restart, nil
		}
		return Retry, nil
	}
	if p.in.Policy != Pause || !failed && !is(err, typeTimeout) {
		return "", err
	}
	d, e := p.ask(ctx, p.key(i).String(), cause(err), []string{Retry, Skip, Restart, Abort}, nil)
	if errors.Is(e, errAborted) {
		return "", err // the action's own words tell more
	}
	if e == nil && d.Choice == Skip {
		by := d.By
		if by == "" {
			by = "a person"
		}
		a.State, a.Message = action.Success, fmt.Sprintf("skipped by %s: %s", by, a.Message)
		e = p.write(ctx)
	}
	return d.Choice, e
}

// again starts the machine again and chooses the disk, in the midst of actions.
func (p *provision) again(ctx workflow.Context) error {
	p.record.State = inventory.StatePreparing
	if err := p.begin(ctx); err != nil {
		return err
	}
	p.reseedLater()
	if err := p.bind(ctx); err != nil {
		return err
	}
	p.record.State = inventory.StateRunning
	return nil
}

const typeActionFailed = "ActionFailed"

// act carries out one action, again when its agent was lost on the way.
func (p *provision) act(ctx workflow.Context, i int) error {
	for lost := 1; ; lost++ {
		gone, err := p.attempt(ctx, i)
		if err != nil || !gone {
			return err
		}
		if lost == lostAttempts {
			_, err := p.ask(ctx, p.key(i).String(), fmt.Sprintf("the agent was lost %d times during %q", lost, p.record.Actions[i].Name), []string{Retry, Abort}, nil)
			if err != nil {
				return err
			}
			lost = 0
		}
		if err := p.again(ctx); err != nil {
			return err
		}
		p.doing = nil // another boot's agent is up
	}
}

func (p *provision) key(i int) action.Key {
	return action.Key{Epoch: p.owner.Epoch, Action: i, Attempt: p.record.Actions[i].Attempt}
}

// attempt hands the action to the agent and waits for its end. gone: the agent
// is, and nothing of it writes any more.
func (p *provision) attempt(ctx workflow.Context, i int) (gone bool, err error) {
	a := &p.record.Actions[i]
	a.Attempt++
	a.State, a.StartedAt, a.Message, a.Seconds = action.Running, workflow.Now(ctx), "", 0
	k := p.key(i)
	p.doing = &k // from here on the agent may have it
	if err := p.assign(ctx, k); err != nil {
		return false, err
	}
	if err := p.phase(ctx, inventory.PhaseAction, "%s", a.Name); err != nil {
		return false, err
	}
	begun, limit, resumed := workflow.Now(ctx), a.Timeout.Duration()+grace, 0
	for {
		until := begun.Add(limit)
		done := func() bool { _, ok := p.results[k]; return ok }
		_, err := p.await(ctx, until.Sub(workflow.Now(ctx)), func() bool {
			return done() || p.lost[k] || p.idle[k] || p.idle[action.Key{}] || p.conflict || p.heard[inventory.EventRebooted]
		})
		if err != nil && !errors.Is(err, errTimeout) {
			return false, err
		}
		over := !workflow.Now(ctx).Before(until)
		switch {
		case done():
			return false, p.completed(ctx, i, p.results[k])
		case errors.Is(err, errTimeout):
			// The report may lie in the database before its signal is here.
			found, e := p.evidence(ctx, k, activities.Wait{})
			if e != nil {
				return false, e
			}
			if found.Kind == activities.Report {
				return false, p.completed(ctx, i, ActionCompleted{Key: k, State: found.State, ExitCode: found.ExitCode, Message: found.Message})
			}
			return false, errTimeout
		case p.conflict:
			// Its token is worth nothing any more, and it may write on: whoever
			// restarts has its power taken first, or has done so.
			return true, p.contested(ctx)
		case (p.idle[k] || p.idle[action.Key{}]) && !over:
			// Polls and finds no row: the row is written again.
			delete(p.idle, k)
			delete(p.idle, action.Key{})
			if err := p.assign(ctx, k); err != nil {
				return false, err
			}
			continue
		}
		delete(p.lost, k)
		delete(p.heard, inventory.EventRebooted)
		var waited activities.Wait
		if over {
			waited = activities.Wait{Began: begun, For: limit}
		}
		found, err := p.evidence(ctx, k, waited)
		if err != nil {
			return false, err
		}
		switch {
		case done():
			return false, p.completed(ctx, i, p.results[k])
		case found.Kind == activities.Report:
			return false, p.completed(ctx, i, ActionCompleted{Key: k, State: found.State, ExitCode: found.ExitCode, Message: found.Message})
		case found.Left > 0 && resumed < resumes:
			// The clock was set: the action has the rest of its time, and the
			// secrets that its claim had opened.
			begun, limit = workflow.Now(ctx), found.Left
			resumed++
			if err := p.beside(ctx, do.OpenSecrets, activities.WindowRequest{Owner: p.owner, For: limit + beyond}); err != nil {
				return false, err
			}
		case found.Kind == activities.Silent:
			a.State, a.Message = action.Failed, "the agent was lost"
			// Silent is not dead: before anybody else writes, the power goes.
			if err := p.stop(ctx, k); err != nil {
				return false, err
			}
			p.doing = nil
			if d, ok := p.results[k]; ok && d.State != action.Stopped {
				return false, p.completed(ctx, i, d) // it came back with its report
			}
			return true, nil
		case over:
			a.State = action.Timeout
			a.Message = fmt.Sprintf("did not end within its timeout of %s", a.Timeout.Duration())
			if err := p.stop(ctx, k); err != nil {
				return false, err
			}
			p.doing = nil
			return false, temporal.NewNonRetryableApplicationError(fmt.Sprintf("action %q %s", a.Name, a.Message), typeTimeout, nil)
		}
	}
}

func (p *provision) assign(ctx workflow.Context, k action.Key) error {
	return p.assignment(ctx, activities.AssignRequest{Owner: p.owner, Boot: p.boot, Key: k, Disk: p.disk})
}

func (p *provision) assignment(ctx workflow.Context, q activities.AssignRequest) error {
	ctx = workflow.WithLocalActivityOptions(ctx, local)
	return workflow.ExecuteLocalActivity(ctx, do.Assign, q).Get(ctx, nil)
}

func (p *provision) completed(ctx workflow.Context, i int, d ActionCompleted) error {
	p.doing = nil
	a := &p.record.Actions[i]
	a.State, a.Message, a.Seconds = d.State, d.Message, workflow.Now(ctx).Sub(a.StartedAt).Seconds()
	if d.State == action.Success {
		return nil // the next action, or the disarm, writes the record at once
	}
	if err := p.write(ctx); err != nil {
		return err
	}
	switch d.State {
	case action.Success:
		return nil
	case action.Timeout:
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("action %q: %s", a.Name, d.Message), typeTimeout, nil)
	}
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf("action %q: %s", a.Name, d.Message), typeActionFailed, nil)
}

// stop makes sure that the attempt writes no more: the agent says that its
// descriptors are closed, or a later boot has begun, or the power is gone, or
// a person says so.
func (p *provision) stop(ctx workflow.Context, k action.Key) error {
	if err := p.phase(ctx, inventory.PhaseStopping, "stopping %s", p.record.Actions[k.Action].Name); err != nil {
		return err
	}
	if err := p.beside(ctx, do.Stop, activities.StopRequest{Owner: p.owner, Key: k}); err != nil {
		return err
	}
	stopped := func() bool { _, ok := p.results[k]; return ok || p.helloed > p.boot }
	for wait, again := untilStopped, 0; ; again++ {
		began := workflow.Now(ctx)
		if ok, err := workflow.AwaitWithTimeout(ctx, wait, stopped); ok || err != nil {
			return err
		}
		// Its word may lie in the database, and the order travels in an answer
		// of this server.
		found, err := p.evidence(ctx, k, activities.Wait{Began: began, For: wait, Served: true})
		if err != nil {
			return err
		}
		if stopped() {
			return nil
		}
		if found.Kind == activities.Report {
			p.results[k] = ActionCompleted{Key: k, State: found.State, ExitCode: found.ExitCode, Message: found.Message}
			return nil
		}
		if found.Left == 0 || again == resumes {
			break
		}
		wait = found.Left
	}
	p.off = true
	if !p.manual {
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, bmc), do.PowerOff, p.owner).Get(ctx, nil)
		if err == nil || !p.trouble(err) {
			return err
		}
	}
	_, err := p.ask(ctx, k.String()+".stop", fmt.Sprintf("the agent of %s does not answer and may still be writing: switch the machine off by hand, then continue", p.owner.Machine),
		[]string{Continue}, nil)
	return err
}

// halt is what a run that ends badly does first: the agent ends what it is
// doing. A run that was fenced has nothing left to stop.
func (p *provision) halt(ctx workflow.Context, err error) error {
	if p.doing == nil {
		return err
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	p.budget = 0
	if e := p.stop(ctx, *p.doing); e != nil && !lost(e) {
		p.log.Error("stopping the agent", "error", e)
	}
	p.doing = nil
	return err
}

// leave closes netboot, sends the machine into what was installed and waits
// for evidence of it.
func (p *provision) leave(ctx workflow.Context) error {
	p.record.State = inventory.StatePost
	if err := p.phase(ctx, inventory.PhaseDisarm, "closing network boot"); err != nil {
		return err
	}
	if err := p.disarm(ctx); err != nil {
		return err
	}
	if p.disputed() {
		return p.contested(ctx)
	}
	proven := p.plan.Evidence == activities.EvidencePhoneHome
	if err := p.secrets(ctx, proven); err != nil {
		return err
	}
	i := len(p.plan.Actions) - 1
	a := &p.record.Actions[i]
	a.Attempt++
	a.State, a.StartedAt = action.Running, workflow.Now(ctx)
	k := p.key(i)
	if err := p.assign(ctx, k); err != nil {
		return err
	}
	if err := p.phase(ctx, inventory.PhaseReboot, "%s", a.Name); err != nil {
		return err
	}
	left := func() bool { _, ok := p.results[k]; return ok || p.heard[inventory.EventPhoneHome] || p.disputed() }
	for wait, again := a.Timeout.Duration()+grace, 0; ; again++ {
		began := workflow.Now(ctx)
		if ok, err := p.await(ctx, wait, left); err != nil {
			return err
		} else if ok {
			break
		}
		// Without evidence to come the agent's word is all there is.
		found, err := p.evidence(ctx, k, activities.Wait{Began: began, For: wait})
		if err != nil {
			return err
		}
		if left() {
			break
		}
		if found.Kind == activities.Report {
			p.results[k] = ActionCompleted{Key: k, State: found.State, ExitCode: found.ExitCode, Message: found.Message}
			break
		}
		if found.Left > 0 && again < resumes {
			wait = found.Left
			if err := p.secrets(ctx, proven); err != nil {
				return err
			}
			continue
		}
		if found.Kind == activities.Alive && !proven {
			return temporal.NewNonRetryableApplicationError(fmt.Sprintf("action %q did not end within its timeout", a.Name), typeTimeout, nil)
		}
		break
	}
	if p.disputed() {
		return p.contested(ctx)
	}
	if d, ok := p.results[k]; ok && d.State != action.Success {
		return p.completed(ctx, i, d)
	}
	if proven {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	a.State, a.Seconds = action.Success, workflow.Now(ctx).Sub(a.StartedAt).Seconds()
	p.record.Message = "installed and ready"
	if !proven {
		p.record.Message = "installed; the template leaves no evidence of the installed system (evidence: weak)"
	}
	return nil
}

// disputed tells whether a second claimant has come after the last action:
// whom the machine was handed to is open then, whatever it reported.
func (p *provision) disputed() bool { return p.conflict }

// secrets opens the secrets window for the installed system, if it will say so
// when it needs them no more.
func (p *provision) secrets(ctx workflow.Context, proven bool) error {
	if !proven {
		return nil
	}
	return p.beside(ctx, do.OpenSecrets, activities.WindowRequest{Owner: p.owner, For: untilReady + beyond})
}

// ready waits for the nonce that the run wrote to the disk.
func (p *provision) ready(ctx workflow.Context) error {
	home := func() bool { return p.heard[inventory.EventPhoneHome] || p.disputed() }
	patience := untilReady
	if p.installer { // the first start of what it installed may take as long
		patience = max(patience, p.plan.Installer.Timeout.Duration())
	}
	for n, wait, resumed := 0, patience, 0; ; {
		if err := p.phase(ctx, inventory.PhaseReady, "waiting for the installed system to phone home"); err != nil {
			return err
		}
		began := workflow.Now(ctx)
		if ok, err := p.await(ctx, wait, home); err != nil {
			return err
		} else if p.disputed() {
			return p.contested(ctx)
		} else if ok {
			return p.beside(ctx, do.CloseSecrets, p.owner)
		}
		found, err := p.evidence(ctx, action.Key{}, activities.Wait{Began: began, For: wait, Served: true})
		if err != nil {
			return err
		}
		if home() {
			continue
		}
		switch {
		case found.Left > 0 && resumed < resumes:
			// Neither a restart nor a person, before its time is really up.
			wait = found.Left
			resumed++
		case n == 0 && !p.manual && !p.installer:
			err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, bmc), do.ColdStart, p.owner).Get(ctx, nil)
			if err != nil && !p.trouble(err) {
				return err
			}
			n, wait, resumed = n+1, patience, 0
		default:
			d, moot, err := p.askUnless(ctx, home, fmt.Sprintf("%d.ready.%d", p.owner.Epoch, n),
				"the installed system has not phoned home; look at its console", []string{Retry, Continue, Abort}, nil)
			if err != nil {
				return err
			}
			if moot {
				continue
			}
			if d.Choice == Continue { // a person's word instead of the nonce
				p.record.Evidence = "person"
				return p.beside(ctx, do.CloseSecrets, p.owner)
			}
			n, wait, resumed = n+1, patience, 0
		}
		if err := p.secrets(ctx, true); err != nil {
			return err
		}
	}
}
