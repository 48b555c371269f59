package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// startTogether validates the input and starts an operation in which several machines carry out one template.
func (s *starter) startTogether(ctx context.Context, in contract.TogetherInput) (apitypes.Started, error) {
	if err := s.checkTogether(ctx, in); err != nil {
		return apitypes.Started{}, err
	}
	in.By = httpapi.Actor(ctx)
	return s.operations.start(ctx, engine.Start{ID: contract.TogetherID(in.Name), Type: inventory.TypeTogether, Input: in}, in.Name)
}

// checkTogether validates the input of a new operation, and renders the template for each machine. It only reports early, and for all
// machines at once, what the plan of each run checks again.
func (s *starter) checkTogether(ctx context.Context, in contract.TogetherInput) error {
	// This check comes first: the machines of an open operation are busy, and the error would list them.
	if err := s.operations.refuseBeside(ctx, inventory.OperationFilter{ID: contract.TogetherID(in.Name)}); err != nil {
		return err
	}

	var problems inventory.Problems
	if !inventory.OperationName.MatchString(in.Name) {
		problems.Add("name", "use letters, digits, - and _", "invalid name of an operation %q", in.Name)
	}
	if in.Resume != "" {
		problems.Add("resume", "ingot together retry "+in.Name, "must be left out: only a retry of the operation sets this field")
	}
	problems = append(problems, in.Validate()...)
	if in.Template != "" {
		if err := s.templates.check(ctx, &problems, "template", in.Template); err != nil {
			return err
		}
	}
	if in.Image != "" {
		if err := s.images.check(ctx, &problems, "image", in.Image); err != nil {
			return err
		}
	}

	machines, err := s.machinesOfMap(ctx, &problems, in.HardwareMap)
	if err != nil {
		return err
	}
	if err := s.checkAllFree(ctx, &problems, machines); err != nil {
		return err
	}
	if len(problems) > 0 {
		return problems
	}
	return s.templates.renderTogether(ctx, in, machines)
}

// retryOperation starts an operation ProvisionTogether again that has ended. Machines that it has installed stay as they are.
func (s *starter) retryOperation(ctx context.Context, q byRun) (apitypes.Started, error) {
	o, err := s.operations.find(ctx, q.Run)
	if err == nil {
		err = s.mayRetry(ctx, o)
	}
	if err != nil {
		return apitypes.Started{}, err
	}
	var in contract.TogetherInput
	if err := json.Unmarshal(o.Input, &in); err != nil {
		return apitypes.Started{}, fmt.Errorf("reading the input of run %q: %w", o.Run, err)
	}

	// An operation may have ended before it found or started its machines. Then the operation before it shows what is installed.
	if slices.ContainsFunc(o.Steps, func(x inventory.OperationStep) bool { return x.Run != "" }) {
		in.Resume = o.Run
	}
	if err := s.checkRetry(ctx, o, in); err != nil {
		return apitypes.Started{}, err
	}
	in.By = httpapi.Actor(ctx)
	return s.operations.start(ctx, engine.Start{ID: o.ID, Type: o.Type, Input: in}, in.Name)
}

// mayRetry returns an error if the operation cannot be retried.
func (s *starter) mayRetry(ctx context.Context, o inventory.Operation) error {
	show := "ingot operation get " + o.Run
	switch {
	case o.Type == inventory.TypeGenesis:
		return inventory.Invalid("", "ingot genesis resume "+o.Name, "%s cannot be retried, but resumed", o.ID)
	case o.Type != inventory.TypeTogether:
		return inventory.Invalid("", "start it again", "%s cannot be retried: only an operation of the type %s can", o.ID, inventory.TypeTogether)
	case !inventory.Final(o.State):
		return operationIsBusy(o.ID, o.Run)
	case o.State == inventory.StateSuccess:
		return hint(fmt.Errorf("%s has already succeeded: %w", o.ID, inventory.ErrConflict), show)
	}

	newest, err := s.operations.store.Operations(ctx, inventory.OperationFilter{ID: o.ID, Limit: 1})
	if err == nil && len(newest) > 0 && newest[0].Run != o.Run {
		err = hint(fmt.Errorf("run %q of %s is newer, and only the newest run can be retried: %w", newest[0].Run, o.ID, inventory.ErrConflict),
			"ingot operation get "+newest[0].Run)
	}
	return err
}

// checkRetry validates the input with which the operation o is retried. It checks only the machines that o has not installed.
func (s *starter) checkRetry(ctx context.Context, o inventory.Operation, in contract.TogetherInput) error {
	var problems inventory.Problems
	if err := s.templates.check(ctx, &problems, "template", in.Template); err != nil {
		return err
	}
	machines, err := s.machinesOfMap(ctx, &problems, in.HardwareMap)
	if err != nil {
		return err
	}
	rest := slices.DeleteFunc(machines, func(m inventory.Machine) bool {
		return slices.ContainsFunc(o.Steps, func(x inventory.OperationStep) bool { return x.Machine == m.Name && x.State == inventory.StepDone })
	})
	if err := s.checkAllFree(ctx, &problems, rest); err != nil {
		return err
	}
	return problems.Err()
}

// machinesOfMap returns the machines that the hardware map names. If the map is invalid, it returns none, and adds problems.
func (s *starter) machinesOfMap(
	ctx context.Context, problems *inventory.Problems, hardwareMap map[string]string,
) ([]inventory.Machine, error) {
	all, err := s.machines.stores.Machines.Machines(ctx)
	if err != nil {
		return nil, err
	}
	named, err := inventory.MachinesOfMap(all, hardwareMap)
	var found inventory.Problems
	if errors.As(err, &found) {
		*problems = append(*problems, found...)
		return nil, nil
	}
	return named, err
}

// checkAllFree adds a problem for each machine for which no run may be started.
func (s *starter) checkAllFree(ctx context.Context, problems *inventory.Problems, machines []inventory.Machine) error {
	if len(machines) == 0 {
		return nil
	}
	var names []string
	for _, m := range machines {
		names = append(names, m.Name)
	}
	found, err := s.views.ofNames(ctx, names)
	for _, m := range found {
		checkFree(problems, "hardwareMap", m)
	}
	return err
}

// renderTogether renders the template of the operation for each machine. The error has the problems of all machines.
func (t *templates) renderTogether(ctx context.Context, in contract.TogetherInput, machines []inventory.Machine) error {
	found, err := t.find(ctx, in.Template)
	if err != nil {
		return err
	}
	of := map[inventory.Problem][]string{} // value: the machines that have the problem
	var problems inventory.Problems
	for _, m := range machines {
		_, err := t.renderFor(ctx, found, m, without(machines, m), renderTemplate{Image: in.Image, HardwareMap: in.HardwareMap})
		var more inventory.Problems
		if err != nil && !errors.As(err, &more) {
			return fmt.Errorf("machine %q: %w", m.Name, err)
		}
		for _, p := range more {
			if len(of[p]) == 0 {
				problems = append(problems, p)
			}
			if !slices.Contains(of[p], m.Name) {
				of[p] = append(of[p], m.Name)
			}
		}
	}

	for n, p := range problems {
		if names := of[p]; len(names) < len(machines) {
			problems[n].What += " (machine " + strings.Join(names, ", ") + ")"
		}
	}
	return problems.Err()
}

// refuseParent returns an error if a client names an operation ProvisionTogether as the parent of a run: only the operation starts such a
// run, and takes its machine together with the others.
func refuseParent(in contract.ProvisionInput) error {
	if !in.Together() {
		return nil
	}
	return inventory.Invalid("parent", "leave it out; to install several machines by one template: ingot together start",
		"only the operation %s can start its runs", in.Parent)
}

// refuseMember returns an error if an operation ProvisionTogether has started the run w: a retry of the run alone would not wait for the
// tasks of the other machines.
func refuseMember(w inventory.Workflow) error {
	var in contract.ProvisionInput
	if w.Type != inventory.TypeProvision {
		return nil
	}
	if err := readInput(w, &in); err != nil || !in.Together() {
		return err
	}
	return hint(fmt.Errorf("run %q of machine %q is part of %s, which can only be retried as a whole: %w", w.Run, w.Machine, in.Parent,
		inventory.ErrConflict), contract.RetryTogether(in.Parent))
}
