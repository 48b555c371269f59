package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// installByInstaller does what installOnce does, for a plan with an installer: the agent carries out the plan's actions, then the
// machine boots the installer.
func (p *provisioning) installByInstaller(ctx workflow.Context) error {
	p.boot.installer = false
	if err := p.runActionsBeforeInstaller(ctx); err != nil {
		return err
	}

	p.boot.installer = true
	// Disallow network boot without delay: the installer restarts the machine soon after its report.
	if err := inOrder(ctx, p.startMachine, p.waitForInstaller, p.closeForInstalled); err != nil {
		return err
	}

	if p.signals.received[inventory.EventInstallFailed] {
		return p.decideAboutFailedInstaller(ctx)
	}

	end := p.grant.closeSecrets
	if p.provenBy == activities.EvidencePhoneHome && !p.signals.received[inventory.EventPhoneHome] {
		if err := p.grant.openSecrets(ctx, untilReady); err != nil {
			return err
		}
		end = p.waitUntilReady
	}

	if err := end(ctx); err != nil {
		return err
	}

	p.recordInstalled()
	return nil
}

// runActionsBeforeInstaller makes the agent carry out the plan's actions. If the machine has no BMC, the agent also restarts it.
func (p *provisioning) runActionsBeforeInstaller(ctx workflow.Context) error {
	last := len(p.plan.Actions) - 1
	if p.plan.From > last {
		return nil
	}

	if err := inOrder(ctx, p.startMachine, p.bindDisk, p.runActions); err != nil {
		return err
	}

	k := p.record.beginAttempt(ctx, last)
	a := &p.record.Actions[last]
	if !p.manual {
		a.State, a.Message = action.Success, "not needed: the BMC starts the machine again"
		return p.record.writeRecord(ctx)
	}

	// When the server stores the agent's report, it also allows the installer's network boot, and the agent then restarts the
	// machine. From now on, this may happen at any time.
	p.grant.armed = true
	if err := p.assign(ctx, k, reminder+windowMargin); err != nil {
		return err
	}

	if err := p.record.showPhase(ctx, inventory.PhaseReboot, "%s", a.Name); err != nil {
		return err
	}

	// The agent reports before it restarts the machine. Without a report the operator starts
	// the machine by hand.
	s := &p.signals
	w := wait{limit: a.Timeout.Duration() + grace, attempt: k}
	if _, _, err := p.waitFor(ctx, w, func() bool { return s.completed(k) || s.conflict }); err != nil {
		return err
	}

	switch {
	case s.conflict:
		return p.resolveClaimConflict(ctx)
	case s.completed(k):
		return p.finishAttempt(ctx, k)
	}

	a.State, a.Message = action.Timeout, "the agent did not report that it is restarting the machine"
	return p.record.writeRecord(ctx)
}

// waitForInstaller waits until the installer or the installed system has reported. At the deadline it asks the
// operator, because an installer cannot be queried and must not be interrupted.
func (p *provisioning) waitForInstaller(ctx workflow.Context) error {
	s := &p.signals
	p.record.State = inventory.StateRunning
	i := p.plan.Installer
	if i.Loaded && !s.received[inventory.EventPayload] && s.received.hasAny(inventory.EventKernel, inventory.EventInitrd) {
		// The installer runs. So this server has delivered all files of the installer, but was killed before it recorded that.
		// Disallow network boot, because the next one would start the installer again. If neither kernel nor initrd of this boot
		// was fetched, do nothing: the installer that runs then belongs to an earlier boot, and a restart of the machine is about
		// to end it.
		if err := p.grant.closeNetboot(ctx); err != nil {
			return err
		}
	}

	asking, stop := workflow.WithCancel(workflow.WithActivityOptions(ctx, outside))
	defer stop()
	var proof workflow.Future // becomes ready once Talos is found to be installed; nil for other installers
	if inventory.ProvenByDocument(i.Complete) {
		proof = workflow.ExecuteActivity(asking, do.TalosInstalled, p.grant.owner)
	}

	reported := func() bool {
		return s.received.hasAny(inventory.EventInstalled, inventory.EventInstallFailed, inventory.EventPhoneHome) ||
			proof != nil && proof.IsReady()
	}

	// The installer reads files under the secret path until it ends.
	open := func(d time.Duration) error { return p.grant.openSecrets(ctx, d) }
	limit := i.Timeout.Duration()
	for n := 0; ; n++ {
		err := p.record.showPhase(ctx, inventory.PhaseInstall, "the installer is running; waiting for it to finish (%s)", i.Complete)
		if err != nil {
			return err
		}
		if err := open(limit); err != nil {
			return err
		}
		ok, _, err := p.waitFor(ctx, wait{limit: limit, served: true, prolong: open}, reported)
		if err != nil {
			return err
		}
		if ok {
			return p.recordEvidence(ctx, proof)
		}

		d, err := p.askUnless(ctx, reported, inventory.Question{
			ID: p.questionID("install", p.boot.number, n), Text: p.describeOverdueInstaller(limit),
			Choices: []string{contract.Retry, contract.Restart, contract.Continue, contract.Abort},
		})
		switch {
		case err != nil:
			return err
		case d == nil:
			return p.recordEvidence(ctx, proof)
		case d.Choice == contract.Restart:
			return errRestart
		case d.Choice == contract.Continue:
			p.provenBy = evidenceOperator
			return nil
		}
	}
}

// recordEvidence records how the run knows that the installer has finished. If proof is ready, recordEvidence returns the error of
// proof.
func (p *provisioning) recordEvidence(ctx workflow.Context, proof workflow.Future) error {
	if proof != nil && proof.IsReady() {
		return proof.Get(ctx, nil)
	}
	received := p.signals.received
	switch {
	case received[inventory.EventInstallFailed]:
	case received[inventory.EventPhoneHome]:
		p.provenBy = activities.EvidencePhoneHome
	case p.provenBy != activities.EvidencePhoneHome: // a plan that expects a phone-home still waits for it later
		p.provenBy = activities.EvidenceWebhook
	}
	return nil
}

// decideAboutFailedInstaller returns an error with the installer's message, which ends the run. If the policy is
// Pause, it asks the operator first, and returns errRestart if the operator restarts the run.
func (p *provisioning) decideAboutFailedInstaller(ctx workflow.Context) error {
	text := "the installer reported that it failed: " + p.signals.installerMessage
	if p.signals.installerMessage == "" {
		text = "the installer reported that it failed, but gave no reason: look at the machine's console"
	}

	failed := newError(typeInstallFailed, "%s", text)
	if p.in.Policy != contract.Pause {
		return failed
	}

	_, err := p.ask(ctx, p.questionID("install", p.boot.number, "failed"), text, contract.Restart, contract.Abort)
	switch {
	case errors.Is(err, errAborted):
		return failed // this error says more than errAborted
	case err != nil:
		return err
	}
	return errRestart
}

// describeOverdueInstaller returns a text for the operator: what the server has seen of an installer that has not reported in time.
func (p *provisioning) describeOverdueInstaller(limit time.Duration) string {
	text := fmt.Sprintf("the installer has not reported its end within %s", limit)
	switch {
	case !p.signals.received[inventory.EventDocument]:
		text += "; the installer was loaded, but fetched no document"
	case p.signals.received[inventory.EventRebooted]:
		text += "; since then, the machine has asked for network boot and was sent to its disk"
	default:
		text += "; the installer has fetched its document"
	}
	return text + "; look at the machine's console"
}
