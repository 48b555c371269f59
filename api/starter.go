package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// defaultTemplate is the template used if neither the request nor the machine names one.
const defaultTemplate = template.BuiltinImage

// admission refuses new runs while the server is about to hand over to a peer, and while there is too little space.
type admission struct {
	intake func(ctx context.Context) (why string, err error)
	space  *space
}

// check returns nil if new runs are accepted, otherwise an error with the reason. New runs are refused while space is
// low, so that DHCP, the closing of netboot windows and the reports of open runs can use the rest.
func (a *admission) check(ctx context.Context) error {
	if a.intake != nil {
		why, err := a.intake(ctx)
		if err != nil {
			return err
		}
		if why != "" {
			return hint(fmt.Errorf("new runs are refused: %s: %w", why, inventory.ErrMoving), "ingot operation list --open")
		}
	}
	return a.space.checkData()
}

// starter validates the inputs of workflows and starts them.
type starter struct {
	runs       *engine.Runs
	store      WorkflowStore
	jobs       BMCJobStore
	windows    WindowStore
	machines   *machines
	templates  *templates
	images     *images
	views      *views
	operations *operations
	events     *events
	admission  *admission
}

// start starts a run of a machine. If the machine already has an open run, start returns a conflict that names the open
// run.
func (s *starter) start(ctx context.Context, w engine.Start) (apitypes.Started, error) {
	run, err := s.runs.Start(ctx, w)
	var busy *engine.BusyError
	if errors.As(err, &busy) {
		return apitypes.Started{}, machineIsBusy(w.Machine, busy.ID, busy.Run)
	}
	if err != nil {
		return apitypes.Started{}, err
	}
	s.events.note(ctx, inventory.Workflow{Machine: w.Machine, Run: run}, inventory.EventOperator, startedMessage+w.Type, struct{}{})

	return apitypes.Started{Workflow: w.ID, Run: run}, nil
}

// startedMessage begins the message of the event that names who has started a run.
const startedMessage = "started "

// machineIsBusy returns the conflict for a machine that already has an open run.
func machineIsBusy(machine, id, run string) error {
	return hint(fmt.Errorf("machine %q is busy: workflow %s is running as run %s: %w",
		machine, id, run, inventory.ErrConflict), "ingot workflow get "+run)
}

// admit returns the named machine, or an error if new runs are refused or the machine does not exist.
func (s *starter) admit(ctx context.Context, name string) (inventory.Machine, error) {
	if err := s.admission.check(ctx); err != nil {
		return inventory.Machine{}, err
	}
	return s.machines.find(ctx, name)
}

// provision validates the input and starts a run of the given kind, Provision or Reprovision.
func (s *starter) provision(ctx context.Context, kind string, in contract.ProvisionInput) (apitypes.Started, error) {
	m, err := s.admit(ctx, in.Machine)
	if err != nil {
		return apitypes.Started{}, err
	}
	if m.Quarantined() {
		return apitypes.Started{}, hint(fmt.Errorf("machine %q is quarantined: %s: %w", m.Name, m.Standing.Reason, inventory.ErrConflict),
			"ingot machine release "+m.Name+"   # once the reason is resolved")
	}
	if err := refuseParent(in); err != nil {
		return apitypes.Started{}, err
	}
	if in.Resume != "" {
		if err := s.newest(ctx, inventory.Workflow{Run: in.Resume, Machine: m.Name}); err != nil {
			return apitypes.Started{}, err
		}
		// This check only reports the error early: the run checks the same again when it takes the machine.
		if err := s.store.Resumable(ctx, in.Resume); err != nil {
			return apitypes.Started{}, hint(err, engine.RetryCommand(in.Resume, contract.FromStart))
		}
	}

	in.By = httpapi.Actor(ctx)
	name, image := cmp.Or(in.Template, m.Template, defaultTemplate), cmp.Or(in.Image, m.Image)
	if err := s.checkProvision(ctx, in, name, image); err != nil {
		return apitypes.Started{}, err
	}
	return s.start(ctx, engine.Start{
		ID: workflows.MachineID(m.Name), Type: kind, Machine: m.Name, Template: name, Image: image, Input: in,
	})
}

func (s *starter) checkProvision(ctx context.Context, in contract.ProvisionInput, template, image string) error {
	var problems inventory.Problems
	if err := s.templates.check(ctx, &problems, "template", template); err != nil {
		return err
	}
	if image != "" {
		if err := s.images.check(ctx, &problems, "image", image); err != nil {
			return err
		}
	} else if template == defaultTemplate && in.Resume == "" {
		problems.Add("image", "name an image, or set the machine's image", "template %q writes an image, but neither the "+
			"request nor the machine names one", template)
	}

	return append(problems, in.Validate()...).Err()
}

// checkWord adds a problem if value is not one of words. If "" is one of words, the message does not list it.
func checkWord(problems *inventory.Problems, field, value string, words ...string) {
	if !slices.Contains(words, value) {
		shown := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "" })
		problems.Add(field, "", "invalid value %q; must be one of %q", value, shown)
	}
}

func (s *starter) inspect(ctx context.Context, in contract.InspectInput) (apitypes.Started, error) {
	m, err := s.admit(ctx, in.Machine)
	if err != nil {
		return apitypes.Started{}, err
	}
	in.By = httpapi.Actor(ctx)
	return s.start(ctx, engine.Start{ID: workflows.MachineID(m.Name), Type: inventory.TypeInspect, Machine: m.Name, Input: in})
}

func (s *starter) decommission(ctx context.Context, in contract.DecommissionInput) (apitypes.Started, error) {
	m, err := s.admit(ctx, in.Machine)
	if err != nil {
		return apitypes.Started{}, err
	}
	if err := in.Validate().Err(); err != nil {
		return apitypes.Started{}, err
	}
	in.By = httpapi.Actor(ctx)
	return s.start(ctx, engine.Start{
		ID: workflows.MachineID(m.Name), Type: inventory.TypeDecommission, Machine: m.Name, Input: in,
	})
}

type provisionMachines struct {
	DryRun bool `query:"dryRun" json:"-"`
	contract.RecoverInput
}

// provisionMachines starts a Recover workflow that installs machines for the first time: those that are selected now. With
// DryRun it starts nothing, and returns their names in the order in which they would be installed.
func (s *starter) provisionMachines(ctx context.Context, q provisionMachines) (apitypes.Started, error) {
	q.First = true
	in, err := s.checkRecover(ctx, q.RecoverInput)
	if err != nil || q.DryRun {
		return apitypes.Started{Workflow: contract.RecoverID(in.Name), Machines: in.Machines}, err
	}
	return s.startRecover(ctx, in)
}

// checkFirst adds a problem for each machine that cannot be installed for the first time now. It only reports early, and all machines at
// once, what the plan of each run refuses again when no other run can install the machine any more.
func (s *starter) checkFirst(ctx context.Context, problems *inventory.Problems, names []string) error {
	ms, err := s.views.ofNames(ctx, names)
	for _, m := range ms {
		if checkFree(problems, "machines", m) && m.Installed.MayBeSystem() {
			problems.Add("machines", "leave it out, or wipe and install it again: ingot recover start --help",
				"machine %q may hold the system of run %s", m.Name, m.Installed.Run)
		}
	}
	return err
}

// checkFree reports whether a run may be started for the machine. If not, it adds a problem of this field.
func checkFree(problems *inventory.Problems, field string, m apitypes.MachineView) bool {
	switch {
	case m.Quarantined():
		problems.Add(field, "ingot machine release "+m.Name+", once the reason is resolved", "machine %q is quarantined: %s",
			m.Name, m.Standing.Reason)
	case m.Workflow != nil && !inventory.Final(m.Workflow.State):
		problems.Add(field, "leave it out, or wait for the run: ingot workflow get "+m.Name, "machine %q is busy with run %s",
			m.Name, m.Workflow.Run)
	default:
		return true
	}
	return false
}

// recoverMachines validates the input and starts a Recover workflow, which installs many machines.
func (s *starter) recoverMachines(ctx context.Context, in contract.RecoverInput) (apitypes.Started, error) {
	in, err := s.checkRecover(ctx, in)
	if err != nil {
		return apitypes.Started{}, err
	}
	return s.startRecover(ctx, in)
}

func (s *starter) startRecover(ctx context.Context, in contract.RecoverInput) (apitypes.Started, error) {
	in.By = httpapi.Actor(ctx)
	return s.operations.start(ctx, engine.Start{
		ID: contract.RecoverID(in.Name), Type: inventory.TypeRecover, Input: in,
	}, in.Name)
}

// checkRecover validates the input of a Recover workflow. For a first installation, it names the machines that are selected now.
func (s *starter) checkRecover(ctx context.Context, in contract.RecoverInput) (contract.RecoverInput, error) {
	var problems inventory.Problems
	if !inventory.OperationName.MatchString(in.Name) {
		problems.Add("name", "use letters, digits, - and _", "invalid name of a recovery %q", in.Name)
	}
	problems = append(problems, in.Validate()...)
	if in.Template != "" {
		if err := s.templates.check(ctx, &problems, "template", in.Template); err != nil {
			return in, err
		}
	}
	if in.Image != "" {
		if err := s.images.check(ctx, &problems, "image", in.Image); err != nil {
			return in, err
		}
	}
	if in.Continued != nil {
		problems.Add("continued", "leave it out", "must be left out: only a running recovery sets this field")
	}
	all, err := s.machines.stores.Machines.Machines(ctx)
	if err != nil {
		return in, err
	}
	groups, err := inventory.RecoverOrder(all, in.Machines, in.Selector, in.Order)
	if err != nil {
		var more inventory.Problems
		if !errors.As(err, &more) {
			return in, err
		}
		problems = append(problems, more...)
	}
	names := slices.Concat(groups...)
	for _, m := range all {
		name := cmp.Or(in.Template, m.Template, defaultTemplate)
		if name == defaultTemplate && cmp.Or(in.Image, m.Image) == "" && slices.Contains(names, m.Name) {
			problems.Add("machines", "set the machine's image, or name another template",
				"template %q writes an image, but machine %q has none", name, m.Name)
		}
	}
	if in.First && len(names) > 0 {
		if err := s.checkFirst(ctx, &problems, names); err != nil {
			return in, err
		}
		in.Machines, in.Selector = names, nil
	}
	return in, problems.Err()
}

type createWorkflow struct {
	Type  string          `json:"type"`
	Input json.RawMessage `json:"input"`
}

// startAny starts a workflow of the type q.Type.
func (s *starter) startAny(ctx context.Context, q createWorkflow) (apitypes.Started, error) {
	switch q.Type {
	case inventory.TypeProvision, inventory.TypeReprovision:
		return startWith(ctx, q.Input, func(ctx context.Context, in contract.ProvisionInput) (apitypes.Started, error) {
			if err := s.checkResume(ctx, in); err != nil {
				return apitypes.Started{}, err
			}
			return s.provision(ctx, q.Type, in)
		})
	case inventory.TypeDecommission:
		return startWith(ctx, q.Input, s.decommission)
	case inventory.TypeRecover:
		return startWith(ctx, q.Input, s.recoverMachines)
	case inventory.TypeTogether:
		return startWith(ctx, q.Input, s.startTogether)
	case inventory.TypeInspect:
		return startWith(ctx, q.Input, s.inspect)
	case inventory.TypeBMCJob:
		return startWith(ctx, q.Input, s.startBMCJob)
	}
	return apitypes.Started{}, inventory.Invalid("type", "Provision, Reprovision, Decommission, Inspect, BMCJob, Recover or ProvisionTogether",
		"there is no workflow type %q", q.Type)
}

// startWith decodes the input of a workflow and calls start with it.
func startWith[T any](
	ctx context.Context, input json.RawMessage, start func(context.Context, T) (apitypes.Started, error),
) (apitypes.Started, error) {
	var in T
	if err := httpapi.ReadField("input", input, &in); err != nil {
		return apitypes.Started{}, err
	}
	return start(ctx, in)
}

// checkResume returns an error if the run named by in.Resume belongs to another machine than in.Machine, or if only its operation can be
// retried.
func (s *starter) checkResume(ctx context.Context, in contract.ProvisionInput) error {
	if in.Resume == "" {
		return nil
	}
	old, err := s.runs.Find(ctx, in.Resume)
	if err == nil && old.Machine != in.Machine {
		err = inventory.Invalid("input.resume", "", "run %q belongs to machine %q", in.Resume, old.Machine)
	}
	if err == nil {
		err = refuseMember(old)
	}
	return err
}

// retry starts a new run with the type and the input of the run w. from is contract.FromStart, or
// contract.FromFailedStep to begin with the step that failed in w.
func (s *starter) retry(ctx context.Context, w inventory.Workflow, from string) (apitypes.Started, error) {
	switch w.Type {
	case inventory.TypeInspect:
		return s.inspect(ctx, contract.InspectInput{Machine: w.Machine})
	case inventory.TypeDecommission:
		again := contract.DecommissionInput{Machine: w.Machine}
		if err := readInput(w, &again); err != nil {
			return apitypes.Started{}, err
		}
		return s.decommission(ctx, again)
	}
	again := contract.ProvisionInput{Machine: w.Machine, Template: w.Template, Image: w.Image}
	if err := readInput(w, &again); err != nil {
		return apitypes.Started{}, err
	}
	again.Resume = ""
	if from == contract.FromFailedStep {
		again.Resume = w.Run
	}

	return s.provision(ctx, w.Type, again)
}

// newest returns a conflict if a later run has installed or wiped the machine of w: a retry of w would then overwrite a
// system that the operator does not expect. It returns nil for an inspection, because an inspection writes nothing to
// the machine.
func (s *starter) newest(ctx context.Context, w inventory.Workflow) error {
	if w.Type == inventory.TypeInspect {
		return nil
	}
	later, err := s.store.Successor(ctx, w.Run)
	if errors.Is(err, inventory.ErrNotFound) || err == nil && later == "" {
		return nil
	}
	if err != nil {
		return err
	}
	return hint(fmt.Errorf("retrying run %q: run %q of machine %q is newer, and only the newest run can be retried: %w",
		w.Run, later, w.Machine, inventory.ErrConflict), "ingot workflow get "+later+"   # or start a new run for the machine")
}

// readInput decodes the recorded input of the run w into in, which is a pointer. If w has no recorded input, *in stays
// unchanged.
func readInput(w inventory.Workflow, in any) error {
	if len(w.Input) == 0 {
		return nil
	}
	if err := json.Unmarshal(w.Input, in); err != nil {
		return fmt.Errorf("reading the input of run %q: %w", w.Run, err)
	}
	return nil
}
