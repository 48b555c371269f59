package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// evidenceOperator is the evidence of a run in which the operator confirmed that the
// installed system is up.
const evidenceOperator = "operator"

// closeForInstalled disallows network boot: from now on, the machine boots only from its disk.
func (p *provisioning) closeForInstalled(ctx workflow.Context) error {
	p.record.State = inventory.StatePost
	if err := p.record.showPhase(ctx, inventory.PhaseDisarm, "closing network boot"); err != nil {
		return err
	}
	return p.grant.closeNetboot(ctx)
}

// bootInstalledSystem disallows network boot, makes the agent boot the installed system, and waits for evidence that this system is
// up.
func (p *provisioning) bootInstalledSystem(ctx workflow.Context) error {
	if err := p.closeForInstalled(ctx); err != nil {
		return err
	}

	if p.signals.conflict {
		return p.resolveClaimConflict(ctx)
	}

	phonesHome := p.plan.Evidence == activities.EvidencePhoneHome
	if phonesHome {
		// The installed system phones home after it has read its secrets.
		if err := p.grant.openSecrets(ctx, untilReady); err != nil {
			return err
		}
	}

	i := len(p.plan.Actions) - 1
	k := p.record.beginAttempt(ctx, i)
	if err := p.assign(ctx, k, 0); err != nil {
		return err
	}

	a := &p.record.Actions[i]
	if err := p.record.showPhase(ctx, inventory.PhaseReboot, "%s", a.Name); err != nil {
		return err
	}

	if err := p.waitUntilAgentLeft(ctx, k, phonesHome); err != nil {
		return err
	}

	if phonesHome {
		if err := p.waitUntilReady(ctx); err != nil {
			return err
		}
	}

	a.State, a.Seconds = action.Success, workflow.Now(ctx).Sub(a.StartedAt).Seconds()
	p.recordInstalled()
	return nil
}

// recordInstalled records what a successful run has reached, and by which evidence. The record of an open or
// failed run has no evidence.
func (p *provisioning) recordInstalled() {
	w := &p.record
	w.Evidence = p.provenBy
	weak := w.Evidence == activities.EvidenceWeak
	switch {
	case p.plan.NoSystem && weak:
		w.Evidence, w.Message = "", "finished: nothing was installed"
	case p.plan.NoSystem:
		w.Message = fmt.Sprintf("finished: nothing was installed; the system on the disk is ready (evidence: %s)", w.Evidence)
	case weak:
		w.Message = "installed (evidence: weak): nothing shows that the installed system has started"
	case w.Evidence == activities.EvidenceWebhook:
		w.Message = "installed (evidence: webhook): the installer has reported its success"
	default:
		w.Message = fmt.Sprintf("installed and ready (evidence: %s)", w.Evidence)
	}
}

// waitUntilAgentLeft waits for the report of the action that ends the agent. A missing report is not a failure: the machine may
// have restarted before the report arrived.
func (p *provisioning) waitUntilAgentLeft(ctx workflow.Context, k action.Key, phonesHome bool) error {
	s := &p.signals
	w := wait{limit: p.record.Actions[k.Action].Timeout.Duration() + grace, attempt: k}
	if phonesHome {
		w.prolong = func(time.Duration) error { return p.grant.openSecrets(ctx, untilReady) }
	}

	ok, known, err := p.waitFor(ctx, w, func() bool { return s.completed(k) || s.received[inventory.EventPhoneHome] || s.conflict })
	switch {
	case err != nil:
		return err
	case !ok && known.Kind == activities.Alive && !phonesHome:
		// The run expects no phone-home, so it requires the agent's report.
		return newError(typeTimeout, "action %q did not end within its timeout", p.record.Actions[k.Action].Name)
	case s.conflict:
		return p.resolveClaimConflict(ctx)
	case s.completed(k) && s.results[k].State != action.Success:
		return p.finishAttempt(ctx, k)
	}
	return nil
}

// waitUntilReady waits until the installed system phones home with the nonce that the run wrote to the disk. At the first deadline,
// it power-cycles the machine, if the machine has a BMC and has booted no installer. Otherwise, and at every later deadline, it
// asks the operator.
func (p *provisioning) waitUntilReady(ctx workflow.Context) error {
	s := &p.signals
	done := func() bool { return s.received[inventory.EventPhoneHome] || s.conflict }
	limit := untilReady
	if p.boot.installer { // the first boot may take as long as the installation
		limit = max(limit, p.plan.Installer.Timeout.Duration())
	}

	open := func(time.Duration) error { return p.grant.openSecrets(ctx, untilReady) }
	for n := 0; ; n++ {
		if err := p.record.showPhase(ctx, inventory.PhaseReady, "waiting for the installed system to phone home"); err != nil {
			return err
		}
		ok, _, err := p.waitFor(ctx, wait{limit: limit, served: true, prolong: open}, done)
		if err != nil {
			return err
		}
		if !ok && n == 0 && !p.manual && !p.boot.installer {
			if err := execute(ctx, bmc, nil, do.ColdStart, p.grant.owner); err != nil && !operatorCanHelp(err) {
				return err
			}
		} else if !ok {
			d, err := p.askUnless(ctx, done, inventory.Question{
				ID: p.questionID("ready", n), Choices: []string{contract.Retry, contract.Continue, contract.Abort},
				Text: "the installed system has not phoned home; look at its console",
			})
			if err != nil {
				return err
			}
			if d != nil && d.Choice == contract.Continue {
				p.provenBy = evidenceOperator
				return p.grant.closeSecrets(ctx)
			}
			ok = d == nil
		}
		switch {
		case s.conflict:
			return p.resolveClaimConflict(ctx)
		case ok:
			return p.grant.closeSecrets(ctx)
		}
		if err := open(untilReady); err != nil {
			return err
		}
	}
}
