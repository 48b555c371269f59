package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

const typeInstallFailed = "InstallFailed"

// handOver is carryOut for a plan with an installer: the agent carries out what
// the plan has of actions, then the machine boots the installer.
func (p *provision) handOver(ctx workflow.Context) error {
	p.installer = false
	if err := p.before(ctx); err != nil {
		return err
	}
	p.installer = true
	if err := p.begin(ctx); err != nil {
		return err
	}
	if err := p.watch(ctx); err != nil {
		return err
	}
	// What has installed is about to restart the machine: from here on nothing
	// but the disk is booted.
	p.record.State = inventory.StatePost
	if err := p.phase(ctx, inventory.PhaseDisarm, "closing network boot"); err != nil {
		return err
	}
	if err := p.disarm(ctx); err != nil {
		return err
	}
	if p.heard[inventory.EventInstallFailed] {
		return p.installFailed(ctx)
	}
	if p.record.Evidence == activities.EvidencePhoneHome && !p.heard[inventory.EventPhoneHome] {
		if err := p.secrets(ctx, true); err != nil {
			return err
		}
		if err := p.ready(ctx); err != nil {
			return err
		}
	} else if err := p.beside(ctx, do.CloseSecrets, p.owner); err != nil {
		return err
	}
	p.record.Message = fmt.Sprintf("installed and ready (evidence: %s)", p.record.Evidence)
	return nil
}

// before has the agent carry out the actions, and take the machine to its next
// boot if nothing else can.
func (p *provision) before(ctx workflow.Context) error {
	last := len(p.plan.Actions) - 1
	if p.plan.From > last {
		return nil
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
	a := &p.record.Actions[last]
	a.Attempt++
	a.StartedAt = workflow.Now(ctx)
	if !p.manual {
		a.State, a.Message = action.Success, "not needed: its BMC starts the machine again"
		return p.write(ctx)
	}
	a.State = action.Running
	// The agent restarts the machine as soon as its report is stored; with the
	// report the installer's boot is allowed, whatever this run is doing then.
	k := p.key(last)
	p.armed = true
	if err := p.assignment(ctx, activities.AssignRequest{Owner: p.owner, Boot: p.boot, Key: k, Disk: p.disk, Next: reminder + beyond}); err != nil {
		return err
	}
	if err := p.phase(ctx, inventory.PhaseReboot, "%s", a.Name); err != nil {
		return err
	}
	// The agent reports before it leaves. One that says nothing is left to
	// whoever starts the machine by hand.
	done := func() bool { _, ok := p.results[k]; return ok }
	limit, began := a.Timeout.Duration()+grace, workflow.Now(ctx)
	if ok, err := p.await(ctx, limit, func() bool { return done() || p.conflict }); err != nil {
		return err
	} else if !ok {
		found, err := p.evidence(ctx, k, activities.Wait{Began: began, For: limit})
		if err != nil {
			return err
		}
		if found.Kind == activities.Report && !done() {
			p.results[k] = ActionCompleted{Key: k, State: found.State, ExitCode: found.ExitCode, Message: found.Message}
		}
	}
	if p.conflict {
		return p.contested(ctx)
	}
	if !done() {
		a.State, a.Message = action.Timeout, "the agent did not say that it restarts the machine"
		return p.write(ctx)
	}
	return p.completed(ctx, last, p.results[k])
}

// watch waits until the installer, or the system that it installed, has spoken.
// A deadline asks a person: who installs cannot be asked, and must not be
// disturbed.
func (p *provision) watch(ctx workflow.Context) error {
	p.record.State = inventory.StateRunning
	i := p.plan.Installer
	limit := i.Timeout.Duration()
	if i.Loaded && !p.heard[inventory.EventPayload] && (p.heard[inventory.EventKernel] || p.heard[inventory.EventInitrd]) {
		// It is at work, so it was delivered whole, and nobody recorded that (this
		// server was killed just then): the next network boot would be of the
		// installer again. Where no file of this boot was fetched, it is one of an
		// earlier boot that a reset is about to end.
		if err := p.disarm(ctx); err != nil {
			return err
		}
	}
	asking, stop := workflow.WithCancel(workflow.WithActivityOptions(ctx, outside))
	defer stop()
	var api workflow.Future // the proof that only the machine's own API gives
	if i.Complete == inventory.CompleteTalos {
		api = workflow.ExecuteActivity(asking, do.TalosInstalled, p.owner)
	}
	over := func() bool { return p.reported() || api != nil && api.IsReady() }
	for n, wait, resumed := 0, limit, 0; ; {
		if err := p.phase(ctx, inventory.PhaseInstall, "the installer is at work; waiting for its end (%s)", i.Complete); err != nil {
			return err
		}
		// What it reads lies below the capability path until it has ended.
		if err := p.beside(ctx, do.OpenSecrets, activities.WindowRequest{Owner: p.owner, For: wait + beyond}); err != nil {
			return err
		}
		began := workflow.Now(ctx)
		ok, err := p.await(ctx, wait, over)
		if err != nil {
			return err
		}
		if !ok {
			found, err := p.evidence(ctx, action.Key{}, activities.Wait{Began: began, For: wait, Served: true})
			if err != nil {
				return err
			}
			if !over() && found.Left > 0 && resumed < resumes {
				wait = found.Left
				resumed++
				continue
			}
			ok = over()
		}
		if ok {
			return p.proof(ctx, api)
		}
		d, moot, err := p.askUnless(ctx, over, fmt.Sprintf("%d.install.%d.%d", p.owner.Epoch, p.boot, n), p.silence(limit), []string{Retry, Restart, Continue, Abort}, nil)
		switch {
		case err != nil:
			return err
		case moot:
			return p.proof(ctx, api)
		case d.Choice == Restart:
			return errRestart
		case d.Choice == Continue: // a person's word
			p.record.Evidence = "person"
			return nil
		}
		n, wait, resumed = n+1, limit, 0
	}
}

// proof notes by what the end of the installer is known.
func (p *provision) proof(ctx workflow.Context, api workflow.Future) error {
	if api != nil && api.IsReady() {
		return api.Get(ctx, nil)
	}
	switch {
	case p.heard[inventory.EventInstallFailed]:
	case p.heard[inventory.EventPhoneHome]:
		p.record.Evidence = activities.EvidencePhoneHome
	case p.record.Evidence != activities.EvidencePhoneHome: // that is yet to come
		p.record.Evidence = activities.EvidenceWebhook
	}
	return nil
}

// installFailed ends the run with what the installer said, unless a person is
// to decide and wants it all again.
func (p *provision) installFailed(ctx workflow.Context) error {
	failed := temporal.NewNonRetryableApplicationError(p.failure(), typeInstallFailed, nil)
	if p.in.Policy != Pause {
		return failed
	}
	_, err := p.ask(ctx, fmt.Sprintf("%d.install.%d.failed", p.owner.Epoch, p.boot), p.failure(), []string{Restart, Abort}, nil)
	switch {
	case errors.Is(err, errAborted):
		return failed // its own words tell more
	case err != nil:
		return err
	}
	return errRestart
}

// failure is what the installer says has gone wrong.
func (p *provision) failure() string {
	if p.said == "" {
		return "the installer reported that it failed, and not why: look at the machine's console"
	}
	return "the installer reported that it failed: " + p.said
}

// silence tells what was and was not seen of an installer that is overdue.
func (p *provision) silence(limit time.Duration) string {
	text := fmt.Sprintf("the installer has not reported its end within %s", limit)
	switch {
	case !p.heard[inventory.EventDocument]:
		text += "; it was loaded, and fetched no document"
	case p.heard[inventory.EventRebooted]:
		text += "; the machine has asked for network boot since, and was sent to its disk"
	default:
		text += "; it has fetched its document"
	}
	return text + "; look at the machine's console"
}
