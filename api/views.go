package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
)

// ViewStore reads machines, and what is shown with each machine: its grant, agent and run.
type ViewStore interface {
	MachineNames(ctx context.Context, f inventory.MachineFilter) ([]string, error)
	MachineStates(ctx context.Context, names []string) ([]inventory.MachineState, error)
	Installed(ctx context.Context, machine string) (map[string]inventory.Installed, error)
	MachineCount(ctx context.Context) (int, error)
	OpenRuns(ctx context.Context) ([]inventory.OpenRun, error)
}

// views builds what the API returns about the current state of machines and runs.
type views struct {
	store  ViewStore
	runs   *engine.Runs
	agents *engine.Agents
	// retrying returns the activities of a run that have failed and are being retried. The function may be nil.
	retrying func(run string) []string
	now      func() time.Time
}

type listMachines struct {
	httpapi.Page
	Selector string `query:"selector"`
	State    string `query:"state"`
}

// list returns the machines that the query selects.
func (v *views) list(ctx context.Context, q listMachines) (httpapi.List[apitypes.MachineView], error) {
	empty := httpapi.List[apitypes.MachineView]{}
	if q == (listMachines{}) {
		all, err := v.ofNames(ctx, nil)
		return httpapi.NewList(all), err
	}
	wanted, err := selector.Parse(q.Selector)
	if err != nil {
		return empty, err
	}
	descending, err := q.Descending("name", "name")
	if err != nil {
		return empty, err
	}
	state, err := parseState(q.State)
	if err != nil {
		return empty, err
	}
	f := inventory.MachineFilter{Selector: wanted, State: state, After: q.After, Descending: descending}
	if q.Limit > 0 {
		f.Limit = q.Limit + 1 // one machine more than the page holds: it shows whether the list continues
	}
	names, err := v.store.MachineNames(ctx, f)
	if err != nil {
		return empty, err
	}

	page := httpapi.Cut(names, q.Limit, func(name string) string { return name })
	found, err := v.ofNames(ctx, page.Items)
	if descending {
		slices.Reverse(found)
	}
	return httpapi.List[apitypes.MachineView]{Items: found, Next: page.Next}, err
}

// ofNames returns the views of the named machines, sorted by name. If names is nil, it returns the views of all
// machines.
func (v *views) ofNames(ctx context.Context, names []string) ([]apitypes.MachineView, error) {
	states, err := v.states(ctx, names)
	if err != nil {
		return nil, err
	}
	only := "" // all machines
	if len(names) == 1 {
		only = names[0]
	}
	installed, err := v.store.Installed(ctx, only)
	if err != nil {
		return nil, err
	}
	out := make([]apitypes.MachineView, len(states))
	for i, st := range states {
		out[i] = v.ofState(st, installed)
	}

	return out, nil
}

// viewMachine returns the view of one machine.
func (v *views) viewMachine(ctx context.Context, m inventory.Machine) (apitypes.MachineView, error) {
	out, err := v.of(ctx, []inventory.Machine{m})
	if err != nil {
		return apitypes.MachineView{Machine: m}, err
	}
	return out[0], nil
}

// of returns the views of the machines ms, in the same order. If a machine was deleted since it was read, only the
// field Machine of its view is set.
func (v *views) of(ctx context.Context, ms []inventory.Machine) ([]apitypes.MachineView, error) {
	names := make([]string, len(ms))
	for i, m := range ms {
		names[i] = m.Name
	}
	found, err := v.ofNames(ctx, names)
	if err != nil {
		return nil, err
	}

	byName := make(map[string]apitypes.MachineView, len(found))
	for _, x := range found {
		byName[x.Name] = x
	}
	out := make([]apitypes.MachineView, len(ms))
	for i, m := range ms {
		out[i] = byName[m.Name]
		out[i].Machine = m
	}
	return out, nil
}

// ofState returns the view of the machine st. It adds what is installed on the machine, and facts that only this
// process knows, such as the time of the last contact with the agent.
func (v *views) ofState(st inventory.MachineState, installed map[string]inventory.Installed) apitypes.MachineView {
	out := apitypes.MachineView{Machine: st.Machine, Netboot: st.Grant.View(v.now()), LastSeen: v.agents.LastSeen(st.Name)}
	if out.LastSeen.IsZero() {
		out.LastSeen = st.LastSeen
	}
	if st.Workflow != nil {
		w := v.summarize(*st.Workflow)
		out.Workflow = &w
	}
	if x, ok := installed[st.Name]; ok {
		out.Installed = &x
	}

	return out
}

// states reads the named machines, or all machines if names is nil, with their grants, runs and agents. It includes
// runs that this process has started but not yet recorded. Because such a run may be recorded at any time, states looks
// it up once more.
func (v *views) states(ctx context.Context, names []string) ([]inventory.MachineState, error) {
	states, err := v.store.MachineStates(ctx, names)
	if err != nil {
		return nil, err
	}
	unrecorded := v.runs.Unrecorded()
	for i, st := range states {
		u, ok := unrecorded[st.Name]
		if !ok || st.Workflow != nil && !u.Started.After(st.Workflow.Started) {
			continue
		}
		w, err := v.runs.Latest(ctx, st.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading machine %q: %w", st.Name, err)
		}
		states[i].Workflow = &w
	}

	return states, nil
}

// summarize returns the run w with the progress that the agent has reported, but without the input of w and without the
// logs of its actions.
func (v *views) summarize(w inventory.Workflow) inventory.Workflow {
	w = v.withProgress(w)
	w.Input = nil
	for i := range w.Actions {
		w.Actions[i].Log = ""
	}

	return w
}

// retriesOf returns the activities of a run that have failed and are being retried. For a run that waits for the
// operator it returns nil, because no attempts are left.
func (v *views) retriesOf(w inventory.Workflow) []string {
	if v.retrying == nil || inventory.Final(w.State) || w.Phase == inventory.PhaseWaiting {
		return nil
	}
	return v.retrying(w.Run)
}

// withProgress returns w with two additions: the activities that are being retried, and the agent's latest progress in
// the running action. It copies the actions, so the caller's slice stays unchanged.
func (v *views) withProgress(w inventory.Workflow) inventory.Workflow {
	w.Actions = append([]inventory.ActionRecord{}, w.Actions...)
	w.Retrying = v.retriesOf(w)
	p, ok := v.agents.Progress(inventory.Owner{Machine: w.Machine, Run: w.Run, Epoch: w.Epoch})
	if !ok || p.Key.Action < 0 || p.Key.Action >= len(w.Actions) {
		return w
	}
	a := &w.Actions[p.Key.Action]
	if a.State != action.Running && a.State != action.Pending || a.Attempt != 0 && a.Attempt != p.Key.Attempt {
		return w
	}

	a.Done, a.Total = p.Done, p.Total
	if p.Message != "" {
		a.Message = p.Message
	}
	return w
}
