package workflows

import (
	"errors"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// provisioning is a run of Provision or Reprovision.
type provisioning struct {
	*machineRun
	in       contract.ProvisionInput
	wipe     bool // wipe the disk before the installation
	plan     activities.Planned
	disk     *action.Disk
	assigned *action.Key // attempt that may still be under way; nil if none
	provenBy string      // evidence for the installed system: first what the plan expects, in the end what was found
	retries  int         // retries used so far, at most in.Retries.Count
	binds    int         // number of calls of Bind so far; part of the ids of the questions
}

// Provision installs the machine's template on it. The workflow id is machine/<machine>; any
// other id is refused before anything is changed.
func Provision(ctx workflow.Context, in contract.ProvisionInput) (Outcome, error) {
	return provision(ctx, inventory.TypeProvision, in, false)
}

// Reprovision first wipes what identifies the content of the disk (partition tables and file system signatures), and then installs
// the machine as Provision does, in the same boot. The workflow id is machine/<machine>.
func Reprovision(ctx workflow.Context, in contract.ProvisionInput) (Outcome, error) {
	return provision(ctx, inventory.TypeReprovision, in, true)
}

func provision(ctx workflow.Context, typ string, in contract.ProvisionInput, wipe bool) (Outcome, error) {
	r, err := newMachineRun(ctx, typ, MachineID(in.Machine), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	p := &provisioning{machineRun: r, in: in, wipe: wipe}
	return r.carryOut(ctx, p.install, p.stopAssigned)
}

// install plans the run, takes the grant and installs the machine. If the operator chooses Restart, it installs
// the machine again from the start, under a new epoch.
func (p *provisioning) install(ctx workflow.Context) error {
	if err := inOrder(ctx, p.makePlan, p.arm); err != nil {
		return err
	}

	p.budget.left = p.plan.GlobalTimeout.Duration()
	p.budget.resume(workflow.Now(ctx))
	for {
		err := p.installOnce(ctx)
		if !errors.Is(err, errRestart) {
			return err
		}
		if err := p.retakeGrant(ctx); err != nil {
			return err
		}
		p.assigned, p.disk, p.record.Disk = nil, p.plan.Disk, nil
		p.record.resetActions(p.plan.From)
	}
}

// installOnce installs the machine under the present grant.
func (p *provisioning) installOnce(ctx workflow.Context) error {
	if p.plan.Installer != nil {
		return p.installByInstaller(ctx)
	}
	return inOrder(ctx, p.startMachine, p.bindDisk, p.runActions, p.bootInstalledSystem)
}

// arm takes the machine's grant. If the run belongs to an operation for several machines, the operation takes the grants of all of them.
func (p *provisioning) arm(ctx workflow.Context) error {
	if p.in.Together() {
		if err := p.awaitGrant(ctx, p.in.Parent); err != nil {
			return err
		}
	}
	return p.takeGrant(ctx, false)
}

func (p *provisioning) makePlan(ctx workflow.Context) error {
	if err := p.record.showPhase(ctx, inventory.PhasePlan, "rendering the template"); err != nil {
		return err
	}

	if err := invalid(p.in.Validate()); err != nil {
		return err
	}

	q := activities.PlanRequest{
		Run: p.grant.owner.Run, Machine: p.in.Machine, Template: p.in.Template, Image: p.in.Image,
		HardwareMap: p.in.HardwareMap, Together: p.in.Together(), Resume: p.in.Resume, Wipe: p.wipe, First: p.in.First, By: p.in.By,
	}
	if err := p.planWithImages(ctx, q); err != nil {
		return err
	}

	p.disk = p.plan.Disk
	w := &p.record
	w.Template, w.Image, p.provenBy = p.plan.Template, p.plan.Image, p.plan.Evidence
	w.Installer, w.NoSystem = p.plan.Installer != nil, p.plan.NoSystem
	p.recordPlan()
	for i := range p.plan.From {
		w.Actions[i].State, w.Actions[i].Message = action.Success, "done by run "+p.in.Resume
	}
	return nil
}

// planWithImages makes the plan. If the plan needs files of other servers, it has this server fetch them first.
func (p *provisioning) planWithImages(ctx workflow.Context, q activities.PlanRequest) error {
	for range maxFetches {
		p.plan = activities.Planned{}
		if err := execute(ctx, planning, &p.plan, do.Plan, q); err != nil || len(p.plan.Fetch) == 0 {
			return err
		}
		if err := p.record.showPhase(ctx, inventory.PhasePlan, "fetching %s", strings.Join(p.plan.Fetch, ", ")); err != nil {
			return err
		}
		if err := execute(ctx, fetching, nil, do.FetchImages, q); err != nil {
			return err
		}
	}
	return newError(activities.TypeConflict, "images were deleted again and again before they were planned: %s",
		strings.Join(p.plan.Fetch, ", "))
}

// maxFetches is how often a run fetches the files of a plan. A fetched file may be deleted before the plan that needs it is stored.
const maxFetches = 3

// recordPlan adds the planned actions to the record.
func (p *provisioning) recordPlan() {
	p.manual, p.plannedAs = p.plan.Manual, p.plan.Run
	p.record.Digest = p.plan.Digest
	for _, a := range p.plan.Actions {
		p.record.Actions = append(p.record.Actions, inventory.ActionRecord{
			Name: a.Name, Task: a.Task, Image: a.Image, Timeout: a.Timeout, State: action.Pending,
		})
	}
}

// bindDisk chooses the disk to which the actions write. If no action writes, it does nothing. The agent keeps running while the
// operator is asked.
func (p *provisioning) bindDisk(ctx workflow.Context) error {
	writes := false
	for _, a := range p.plan.Actions[p.plan.From:] {
		writes = writes || a.Writes
	}

	if !writes {
		return nil
	}

	if err := p.record.showPhase(ctx, inventory.PhaseBind, "choosing the disk"); err != nil {
		return err
	}

	q := activities.BindRequest{Owner: p.grant.owner, Disk: p.disk, From: p.plan.From}
	if d := p.record.Disk; d != nil && (d.Serial != "" || d.WWN != "") {
		// This run has already chosen a disk: a retry must use the same disk.
		q.Selector, q.Anyway = &inventory.DiskSelector{Serial: d.Serial, WWN: d.WWN}, true
	}

	for {
		p.binds++
		var b activities.Bound
		if err := execute(ctx, quick, &b, do.Bind, q); err != nil {
			return err
		}
		if b.Disk != nil {
			p.disk, p.record.Disk = b.Disk, b.Disk
			return nil
		}
		d, err := p.askUnless(ctx, nil, inventory.Question{
			ID: p.questionID("bind", p.binds), Text: b.Reason, Choices: []string{contract.Retry, contract.Abort}, Disks: b.Disks,
		})
		if err != nil {
			return err
		}
		if d.DiskSelector != nil {
			q.Selector, q.Disk, q.Anyway = d.DiskSelector, nil, b.CanConfirm
		}
	}
}
