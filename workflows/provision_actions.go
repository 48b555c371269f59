package workflows

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// runActions carries out all actions before the one that ends the agent.
func (p *provisioning) runActions(ctx workflow.Context) error {
	p.record.State = inventory.StateRunning
	for i := p.plan.From; i < len(p.plan.Actions); i++ {
		if p.plan.Actions[i].Leaving {
			if i = p.record.firstUndone(i); i < 0 {
				return nil
			}
		}
		if p.record.Actions[i].State == action.Success {
			continue // done; markSeedsUndone has reset the actions that must run again
		}

		if turn := p.plan.TurnOf(i); turn != nil && p.record.Actions[i].Attempt == 0 {
			if err := p.awaitTurn(ctx, activities.TurnRequest{Owner: p.grant.owner, Parent: p.in.Parent, Turn: *turn}); err != nil {
				return err
			}
		}
		choice := contract.Continue
		if err := p.runAction(ctx, i); err != nil {
			if choice, err = p.decideAboutFailure(ctx, i, err); err != nil {
				return err
			}
		}
		// The agent may report success while its power is being cut, so the machine may be off even after a success.
		if choice == contract.Restart || p.boot.poweredOff {
			if err := p.restartAgent(ctx); err != nil {
				return err
			}
		}
		switch choice {
		case contract.Retry:
			i--
		case contract.Restart:
			// Also repeat the actions that an earlier run has done, because the image is written again. A run that later resumes
			// this one must not skip these actions either.
			p.plan.From = 0
			p.record.resetActions(0)
			i = -1
		}
	}
	return nil
}

// decideAboutFailure returns what follows after action i has failed: Retry, Skip, Restart, or an error that ends
// the run. The policy applies once the retries are used up.
func (p *provisioning) decideAboutFailure(ctx workflow.Context, i int, cause error) (string, error) {
	a := &p.record.Actions[i]
	failed := hasType(cause, typeActionFailed)
	if failed {
		if choice, err := p.askAboutImage(ctx, i, cause); choice != "" || err != nil {
			return choice, err
		}
	}
	if failed && p.retries < p.in.Retries.Count {
		p.retries++
		pause := min(firstPause<<min(p.retries-1, 10), lastPause)
		if err := p.record.showPhase(ctx, inventory.PhaseAction, "%s failed: %s; next attempt in %s", a.Name, a.Message, pause); err != nil {
			return "", err
		}
		if _, err := p.await(ctx, pause, func() bool { return false }); err != nil {
			return "", err
		}
		if p.in.Retries.From == contract.FromStart {
			return contract.Restart, nil
		}
		return contract.Retry, nil
	}

	if p.in.Policy != contract.Pause || !failed && !hasType(cause, typeTimeout) {
		return "", cause
	}

	d, err := p.ask(ctx, p.record.attemptKey(i).String(), messageOf(cause), contract.Retry, contract.Skip, contract.Restart, contract.Abort)
	if errors.Is(err, errAborted) {
		return "", cause // cause says more than errAborted
	}

	if err == nil && d.Choice == contract.Skip {
		a.State, a.Message = action.Success, fmt.Sprintf("skipped by %s: %s", cmp.Or(d.By, "the operator"), a.Message)
		err = p.record.writeRecord(ctx)
	}
	return d.Choice, err
}

// askAboutImage asks the operator, whatever the policy is, if one of the files that the failed action i needs is not the file that
// was planned. If all files are the planned ones, choice is "".
func (p *provisioning) askAboutImage(ctx workflow.Context, i int, cause error) (choice string, err error) {
	if workflow.GetVersion(ctx, "ask-about-changed-images", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return "", nil // an older release has started this run, and did not ask this question
	}
	why, q := "", activities.ImagesRequest{Run: p.plan.Run, Machine: p.grant.owner.Machine, Action: i}
	if err := execute(ctx, quick, &why, do.ChangedImage, q); err != nil || why == "" {
		return "", err
	}
	d, err := p.ask(ctx, p.record.attemptKey(i).String(), messageOf(cause)+": "+why, contract.Retry, contract.Abort)
	if errors.Is(err, errAborted) {
		return "", cause // cause says more than errAborted
	}
	return d.Choice, err
}

// restartAgent is called between two actions. It boots the agent again, and chooses the disk again.
func (p *provisioning) restartAgent(ctx workflow.Context) error {
	p.record.State = inventory.StatePreparing
	if err := p.startMachine(ctx); err != nil {
		return err
	}
	p.record.markSeedsUndone(p.plan.Actions, p.boot.number)
	if err := p.bindDisk(ctx); err != nil {
		return err
	}
	p.record.State = inventory.StateRunning
	return nil
}

// runAction carries out one action, and repeats it if the agent was lost during it.
func (p *provisioning) runAction(ctx workflow.Context, i int) error {
	for losses := 1; ; losses++ {
		agentLost, err := p.runAttempt(ctx, i)
		if err != nil || !agentLost {
			return err
		}
		if losses == lossesUntilAsked {
			text := fmt.Sprintf("the agent was lost %d times during %q", losses, p.record.Actions[i].Name)
			if _, err := p.ask(ctx, p.record.attemptKey(i).String(), text, contract.Retry, contract.Abort); err != nil {
				return err
			}
			losses = 0
		}
		if err := p.restartAgent(ctx); err != nil {
			return err
		}
		p.assigned = nil // an agent of a newer boot runs, so the old attempt has ended
	}
}

// runAttempt assigns the action to the agent and waits until the attempt has ended. agentLost means that the agent
// is gone and cannot write any more.
func (p *provisioning) runAttempt(ctx workflow.Context, i int) (agentLost bool, err error) {
	k := p.record.beginAttempt(ctx, i)
	p.assigned = &k // the agent may see the assignment from now on
	if err := p.assign(ctx, k, 0); err != nil {
		return false, err
	}

	a := &p.record.Actions[i]
	if err := p.record.showPhase(ctx, inventory.PhaseAction, "%s", a.Name); err != nil {
		return false, err
	}

	s := &p.signals
	began, limit, prolonged := workflow.Now(ctx), a.Timeout.Duration()+grace, 0
	for {
		until := began.Add(limit)
		_, err := p.await(ctx, until.Sub(workflow.Now(ctx)), func() bool {
			return s.completed(k) || s.lost[k] || s.idle[k] || s.idle[action.Key{}] || s.conflict || s.received[inventory.EventRebooted]
		})
		if err != nil && !errors.Is(err, errTimeout) {
			return false, err
		}
		over := !workflow.Now(ctx).Before(until)
		switch {
		case s.completed(k):
			return false, p.finishAttempt(ctx, k)
		case errors.Is(err, errTimeout):
			// The report may be in the database before its signal arrives.
			if _, err := p.evidence(ctx, k, activities.Wait{}); err != nil {
				return false, err
			}
			if s.completed(k) {
				return false, p.finishAttempt(ctx, k)
			}
			return false, errTimeout
		case s.conflict:
			// The agent's token is revoked, but the agent may still write. If the operator chooses Restart, the machine is switched
			// off first, by this run or (without a BMC) by the operator.
			return true, p.resolveClaimConflict(ctx)
		case (s.idle[k] || s.idle[action.Key{}]) && !over:
			// The agent asks for work and finds no assignment: store the assignment again.
			delete(s.idle, k)
			delete(s.idle, action.Key{})
			if err := p.assign(ctx, k, 0); err != nil {
				return false, err
			}
			continue
		}

		delete(s.lost, k)
		delete(s.received, inventory.EventRebooted)
		var w activities.Wait
		if over {
			w = activities.Wait{Began: began, For: limit}
		}
		known, err := p.evidence(ctx, k, w)
		if err != nil {
			return false, err
		}
		switch {
		case s.completed(k):
			return false, p.finishAttempt(ctx, k)
		case known.Left > 0 && prolonged < maxProlongations:
			// The limit has passed only because the clock was set: the action gets the rest of its time and keeps access to its
			// secrets.
			began, limit = workflow.Now(ctx), known.Left
			prolonged++
			if err := p.grant.openSecrets(ctx, limit); err != nil {
				return false, err
			}
		case known.Kind == activities.Silent:
			return p.replaceSilentAgent(ctx, k)
		case over:
			return false, p.timeOutAttempt(ctx, k)
		}
	}
}

// replaceSilentAgent stops an attempt whose agent is silent. A silent agent may still write, so its machine is switched off before
// another agent writes. agentLost is false if the agent has reported the end of its attempt after all.
func (p *provisioning) replaceSilentAgent(ctx workflow.Context, k action.Key) (agentLost bool, err error) {
	a := &p.record.Actions[k.Action]
	a.State, a.Message = action.Failed, "the agent was lost"
	if err := p.stopAttempt(ctx, k); err != nil {
		return false, err
	}
	p.assigned = nil
	if d, ok := p.signals.results[k]; ok && d.State != action.Stopped {
		return false, p.finishAttempt(ctx, k) // the agent has reported after all
	}
	return true, nil
}

// timeOutAttempt stops an attempt that has timed out, and returns the error of the action.
func (p *provisioning) timeOutAttempt(ctx workflow.Context, k action.Key) error {
	a := &p.record.Actions[k.Action]
	a.State = action.Timeout
	a.Message = fmt.Sprintf("did not end within its timeout of %s", a.Timeout.Duration())
	if err := p.stopAttempt(ctx, k); err != nil {
		return err
	}
	p.assigned = nil
	return newError(typeTimeout, "action %q %s", a.Name, a.Message)
}

// assign stores the assignment that the agent polls for. If next is not zero, the arrival of the agent's report allows the next
// network boot, for the duration next.
func (p *provisioning) assign(ctx workflow.Context, k action.Key, next time.Duration) error {
	return executeLocal(ctx, nil, do.Assign, activities.AssignRequest{
		Owner: p.grant.owner, Boot: p.boot.number, Key: k, Disk: p.disk, Next: next,
	})
}

// finishAttempt records the report of an attempt. It returns an error if the action has not succeeded.
func (p *provisioning) finishAttempt(ctx workflow.Context, k action.Key) error {
	p.assigned = nil
	d := p.signals.results[k]
	a := &p.record.Actions[k.Action]
	a.State, a.Message, a.Seconds = d.State, d.Message, workflow.Now(ctx).Sub(a.StartedAt).Seconds()
	if d.State == action.Success {
		return nil // the change to the next phase writes the record
	}

	if err := p.record.writeRecord(ctx); err != nil {
		return err
	}

	typ := typeActionFailed
	if d.State == action.Timeout {
		typ = typeTimeout
	}
	return newError(typ, "action %q: %s", a.Name, d.Message)
}

// stopAttempt stops an attempt. It returns nil once the attempt cannot write any more: the agent has reported that it stopped, the
// agent of a later boot has sent its hello, the power is off, or the operator has confirmed that the power is off.
func (p *provisioning) stopAttempt(ctx workflow.Context, k action.Key) error {
	if err := p.record.showPhase(ctx, inventory.PhaseStopping, "stopping %s", p.record.Actions[k.Action].Name); err != nil {
		return err
	}

	if err := executeLocal(ctx, nil, do.Stop, activities.StopRequest{Owner: p.grant.owner, Key: k}); err != nil {
		return err
	}

	// served is true because the agent receives the order to stop only while this server is up.
	w := wait{limit: untilStopped, attempt: k, served: true, unlimited: true}
	stopped := func() bool { return p.signals.completed(k) || p.signals.helloBoot > p.boot.number }
	if ok, _, err := p.waitFor(ctx, w, stopped); ok || err != nil {
		return err
	}

	p.boot.poweredOff = true
	if !p.manual {
		err := execute(ctx, bmc, nil, do.PowerOff, p.grant.owner)
		if err == nil || !operatorCanHelp(err) {
			return err
		}
	}

	text := fmt.Sprintf("the agent of %s does not answer and may still be writing: switch the machine off by hand, "+
		"then continue", p.grant.owner.Machine)
	_, err := p.ask(ctx, k.String()+".stop", text, contract.Continue)
	return err
}

// stopAssigned stops the attempt under way in a run that ends badly. A run that has lost its machine has nothing
// to stop.
func (p *provisioning) stopAssigned(ctx workflow.Context) {
	if p.assigned == nil {
		return
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	p.budget.left = 0
	if err := p.stopAttempt(ctx, *p.assigned); err != nil && !lostMachine(err) {
		p.logger().Error("stopping the agent", "error", err)
	}
	p.assigned = nil
}
