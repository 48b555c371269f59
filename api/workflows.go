package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// WorkflowStore holds the records of runs.
type WorkflowStore interface {
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	PhaseTimes(ctx context.Context, limit int) ([]inventory.PhaseTime, error)
	DeleteWorkflow(ctx context.Context, run, by string) error
	Resumable(ctx context.Context, run string) error
	Successor(ctx context.Context, run string) (string, error)
	Log(ctx context.Context, run string, actionIndex, attempt int) (string, error)
}

// workflowRoutes handles the routes that show, start and change runs.
type workflowRoutes struct {
	store    WorkflowStore
	runs     *engine.Runs
	agents   *engine.Agents
	machines *machines
	views    *views
	events   *events
	starter  *starter
}

func (w *workflowRoutes) routes() []httpapi.Route {
	const one, machine = "/v1/workflows/:run", "/v1/machines/:name"

	return []httpapi.Route{
		{Method: "GET", Path: "/v1/workflows", Needs: inventory.RoleRead, Handler: httpapi.Get(w.list)},
		{Method: "GET", Path: "/v1/phases", Needs: inventory.RoleRead, Handler: httpapi.Get(w.listPhases)},
		{Method: "POST", Path: "/v1/workflows", Needs: inventory.RoleOperate, Handler: accept(w.starter.startAny)},
		{Method: "GET", Path: one, Needs: inventory.RoleRead, Handler: httpapi.Get(w.get)},
		{Method: "DELETE", Path: one, Needs: inventory.RoleOperate, Handler: httpapi.Delete(w.delete)},
		{Method: "GET", Path: one + "/events", Needs: inventory.RoleRead, Handler: httpapi.Get(w.listEvents)},
		{Method: "GET", Path: one + "/logs", Needs: inventory.RoleRead, Handler: httpapi.Get(w.getLog)},
		{Method: "POST", Path: one + "/retry", Needs: inventory.RoleOperate, Handler: acceptOptional(w.retry)},
		{Method: "POST", Path: one + "/decide", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, w.decide)},
		{Method: "POST", Path: one + "/cancel", Needs: inventory.RoleOperate, Handler: acceptOptional(w.cancel)},
		{
			Method:  "POST",
			Path:    one + "/powered-on",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusAccepted, httpapi.NoBody, w.reportPoweredOn),
		},
		{Method: "GET", Path: machine + "/workflow", Needs: inventory.RoleRead, Handler: httpapi.Get(w.getLatest)},
		{Method: "POST", Path: machine + "/provision", Needs: inventory.RoleOperate, Handler: w.install(inventory.TypeProvision)},
		{Method: "POST", Path: machine + "/reprovision", Needs: inventory.RoleOperate, Handler: w.install(inventory.TypeReprovision)},
		{Method: "POST", Path: machine + "/decommission", Needs: inventory.RoleOperate, Handler: acceptOptional(w.decommission)},
		{Method: "POST", Path: machine + "/inspect", Needs: inventory.RoleOperate, Handler: acceptOptional(w.inspect)},
		{Method: "POST", Path: "/v1/recover", Needs: inventory.RoleOperate, Handler: accept(w.starter.recoverMachines)},
		{Method: "POST", Path: "/v1/together", Needs: inventory.RoleOperate, Handler: accept(w.starter.startTogether)},
		{
			Method:  "POST",
			Path:    "/v1/operations/:run/retry",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusAccepted, httpapi.NoBody, w.starter.retryOperation),
		},
		{Method: "POST", Path: "/v1/provision", Needs: inventory.RoleOperate, Handler: accept(w.starter.provisionMachines)},
	}
}

type installMachine struct {
	byName
	apitypes.Installation
}

// install returns a handler that starts a run of the given type, Provision or Reprovision.
func (w *workflowRoutes) install(kind string) gin.HandlerFunc {
	return acceptOptional(func(ctx context.Context, q installMachine) (apitypes.Started, error) {
		return w.starter.provision(ctx, kind, contract.ProvisionInput{
			Machine: q.Name, Template: q.Template, Image: q.Image, Retries: q.Retries, Policy: q.Policy, HardwareMap: q.HardwareMap,
		})
	})
}

func (w *workflowRoutes) inspect(ctx context.Context, q byName) (apitypes.Started, error) {
	return w.starter.inspect(ctx, contract.InspectInput{Machine: q.Name})
}

type decommissionMachine struct {
	byName
	Wipe        string `json:"wipe"`
	KeepAddress bool   `json:"keepAddress"`
}

// decommission starts a run that takes a machine out of service.
func (w *workflowRoutes) decommission(ctx context.Context, q decommissionMachine) (apitypes.Started, error) {
	return w.starter.decommission(ctx, contract.DecommissionInput{Machine: q.Name, Wipe: q.Wipe, KeepAddress: q.KeepAddress})
}

type listWorkflows struct {
	httpapi.Page
	Machine  string `query:"machine"`
	Selector string `query:"selector"`
	State    string `query:"state"`
	Open     bool   `query:"open"`
}

// clampLimit returns the limit for a list of runs or operations: 100 if asked is 0, otherwise asked, but at most 1000.
func clampLimit(asked int) int { return min(cmp.Or(asked, 100), 1000) }

// list returns a page of runs, newest first unless the query parameter sort is "started".
func (w *workflowRoutes) list(ctx context.Context, q listWorkflows) (httpapi.List[inventory.Workflow], error) {
	limit := clampLimit(q.Limit)
	f := inventory.WorkflowFilter{Machine: q.Machine, Open: q.Open, Limit: limit + 1}
	var err error
	if f.State, err = parseState(q.State); err != nil {
		return httpapi.List[inventory.Workflow]{}, err
	}
	if f.RunPage, err = pageOfRuns(q.Page); err != nil {
		return httpapi.List[inventory.Workflow]{}, err
	}
	if f.Selector, err = selector.Parse(q.Selector); err != nil {
		return httpapi.List[inventory.Workflow]{}, err
	}
	found, err := w.store.Workflows(ctx, f)
	if err != nil {
		return httpapi.List[inventory.Workflow]{}, err
	}

	for i := range found {
		found[i] = w.views.summarize(found[i])
	}
	return httpapi.Cut(found, limit, func(w inventory.Workflow) string { return runCursor(w.Started, w.Run) }), nil
}

type listPhases struct {
	Limit int `query:"limit" json:"-"`
}

// listPhases returns how long each phase took in the newest installations that have succeeded.
func (w *workflowRoutes) listPhases(ctx context.Context, q listPhases) (httpapi.List[inventory.PhaseTime], error) {
	times, err := w.store.PhaseTimes(ctx, clampLimit(q.Limit))
	return httpapi.NewList(times), err
}

// parseState returns the state that has the name asked, in upper or lower case. It also accepts
// [inventory.FilterWaiting]. For "" it returns "", which means no filter.
func parseState(asked string) (string, error) {
	words := append(inventory.States(), inventory.FilterWaiting)
	for _, word := range append(words, "") {
		if strings.EqualFold(word, asked) {
			return word, nil
		}
	}
	return "", inventory.Invalid("state", "one of "+strings.Join(words, ", "), "invalid value %q", asked)
}

// pageOfRuns returns where the requested page of runs or operations begins.
func pageOfRuns(asked httpapi.Page) (inventory.RunPage, error) {
	newest, err := asked.Descending("started", "-started")
	if err != nil {
		return inventory.RunPage{}, err
	}
	p := inventory.RunPage{Oldest: !newest}
	if asked.After == "" {
		return p, nil
	}

	nanos, run, ok := strings.Cut(asked.After, ".")
	n, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil || !ok {
		return p, inventory.Invalid("after", "use the value of next from the previous page", "invalid cursor %q", asked.After)
	}
	p.AfterStarted, p.AfterRun = time.Unix(0, n), run
	return p, nil
}

// runCursor returns the cursor that continues a list of runs after this run. The list is ordered by start time.
// pageOfRuns parses the cursor.
func runCursor(started time.Time, run string) string {
	return strconv.FormatInt(started.UnixNano(), 10) + "." + run
}

func (w *workflowRoutes) get(ctx context.Context, q byRun) (inventory.Workflow, error) {
	found, err := w.runs.Find(ctx, q.Run)
	if err != nil {
		return found, err
	}
	return w.show(ctx, found), nil
}

func (w *workflowRoutes) getLatest(ctx context.Context, q byName) (inventory.Workflow, error) {
	m, err := w.machines.find(ctx, q.Name)
	if err != nil {
		return inventory.Workflow{}, err
	}
	found, err := w.runs.Latest(ctx, m.Name)
	if errors.Is(err, inventory.ErrNotFound) {
		err = hint(fmt.Errorf("machine %q has no open run, and was never installed or wiped: %w", m.Name, inventory.ErrNotFound),
			"ingot machine provision "+m.Name)
	}
	if err != nil {
		return found, err
	}
	return w.show(ctx, found), nil
}

// show returns the run with its current state. If the command that the run suggests would fail now, show replaces it.
func (w *workflowRoutes) show(ctx context.Context, found inventory.Workflow) inventory.Workflow {
	found = w.views.withProgress(found)
	if strings.Contains(found.Next, "ingot workflow retry") {
		if later, err := w.store.Successor(ctx, found.Run); err == nil && later != "" {
			found.Next = "ingot workflow get " + later
		}
	}
	if found.Resumes() && errors.Is(w.store.Resumable(ctx, found.Run), inventory.ErrConflict) {
		found.Next = engine.RetryCommand(found.Run, contract.FromStart)
	}
	return found
}

func (w *workflowRoutes) delete(ctx context.Context, q byRun) error {
	return w.store.DeleteWorkflow(ctx, q.Run, httpapi.Actor(ctx))
}

type eventsOfRun struct {
	byRun
	httpapi.Page
}

func (w *workflowRoutes) listEvents(ctx context.Context, q eventsOfRun) (httpapi.List[inventory.Event], error) {
	found, err := w.runs.Find(ctx, q.Run)
	if err != nil {
		return httpapi.List[inventory.Event]{}, err
	}
	return w.events.list(ctx, inventory.EventFilter{Machine: found.Machine, Run: found.Run}, q.Page)
}

type logOfRun struct {
	byRun
	Action  string `query:"action"`
	Attempt int    `query:"attempt"`
}

func (w *workflowRoutes) getLog(ctx context.Context, q logOfRun) (httpapi.Text, error) {
	found, err := w.runs.Find(ctx, q.Run)
	if err != nil {
		return "", err
	}
	index, err := findAction(found, q.Action)
	if err != nil {
		return "", err
	}
	// Include the lines that the agent has sent since the last flush.
	w.agents.FlushOrLog(ctx)
	text, err := w.store.Log(ctx, found.Run, index, min(q.Attempt, 1<<20))
	if errors.Is(err, inventory.ErrNotFound) {
		err = nil
	}

	return httpapi.Text(text), err
}

// findAction returns the index of the action that is given by its name or index. For "" it returns the first action
// that has not succeeded, or the last action if all have succeeded.
func findAction(w inventory.Workflow, name string) (int, error) {
	if len(w.Actions) == 0 {
		return 0, fmt.Errorf("run %q has no actions: %w", w.Run, inventory.ErrNotFound)
	}
	i := slices.IndexFunc(w.Actions, func(a inventory.ActionRecord) bool {
		return name == "" && a.State != action.Success || name != "" && a.Name == name
	})
	switch {
	case i >= 0:
		return i, nil
	case name == "":
		return len(w.Actions) - 1, nil
	}
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(w.Actions) {
		return i, nil
	}

	return 0, fmt.Errorf("action %q of run %q: %w", name, w.Run, inventory.ErrNotFound)
}

type retryRun struct {
	byRun
	From string `json:"from"`
}

// retry starts a new run that repeats a run that has ended.
func (w *workflowRoutes) retry(ctx context.Context, q retryRun) (apitypes.Started, error) {
	found, err := w.runs.Find(ctx, q.Run)
	if err != nil {
		return apitypes.Started{}, err
	}
	from := cmp.Or(q.From, contract.FromFailedStep)
	var problems inventory.Problems
	checkWord(&problems, "from", from, contract.FromFailedStep, contract.FromStart)
	switch {
	case len(problems) > 0:
		return apitypes.Started{}, problems
	case !inventory.Final(found.State):
		return apitypes.Started{}, machineIsBusy(found.Machine, found.ID, found.Run)
	case from == contract.FromFailedStep && found.State == inventory.StateSuccess:
		return apitypes.Started{}, hint(fmt.Errorf("run %q succeeded, so there is no failed step: %w", found.Run, inventory.ErrConflict),
			engine.RetryCommand(found.Run, contract.FromStart))
	case found.Type == inventory.TypeBMCJob:
		return apitypes.Started{}, hint(fmt.Errorf("run %q is a BMC job, which cannot be retried; create the job again: %w", found.Run,
			inventory.ErrConflict), "ingot bmc job create")
	}

	if err := refuseMember(found); err != nil {
		return apitypes.Started{}, err
	}
	if err := w.starter.newest(ctx, found); err != nil {
		return apitypes.Started{}, err
	}
	return w.starter.retry(ctx, found, from)
}

// findOpen returns an open run. If the run has ended, it returns the run together with a conflict error.
func (w *workflowRoutes) findOpen(ctx context.Context, run string) (inventory.Workflow, error) {
	found, err := w.runs.Find(ctx, run)
	if err != nil {
		return found, err
	}
	if inventory.Final(found.State) {
		return found, hint(fmt.Errorf("run %q ended as %s: %w", found.Run, found.State, inventory.ErrConflict),
			"ingot workflow get "+found.Run)
	}
	return found, nil
}

type decideRun struct {
	byRun
	contract.Decision
}

// decided is the server's answer to a request that decides a question.
type decided struct {
	Question string `json:"question"`
	Choice   string `json:"choice"`
}

func (w *workflowRoutes) decide(ctx context.Context, q decideRun) (decided, error) {
	found, err := w.findOpen(ctx, q.Run)
	if err != nil {
		return decided{}, err
	}
	d := q.Decision
	err = checkDecision(d, "GET /v1/workflows/"+found.Run,
		contract.Retry, contract.Skip, contract.Restart, contract.Abort, contract.Continue)
	if err != nil {
		return decided{}, err
	}
	d.By = httpapi.Actor(ctx)
	if err := w.runs.Decide(ctx, found.ID, found.Run, d, "ingot workflow get "+found.Run); err != nil {
		return decided{}, err
	}
	w.events.note(ctx, found, inventory.EventDecision, d.Choice, d)

	return decided{d.Question, d.Choice}, nil
}

// checkDecision validates d before d is sent to a run or an operation. Error messages name the route where, which shows
// the open question.
func checkDecision(d contract.Decision, where string, choices ...string) error {
	var problems inventory.Problems
	if d.Question == "" {
		problems.Add("question", "its id is in "+where, "is missing")
	}
	if !slices.Contains(choices, d.Choice) {
		problems.Add("choice", "one of "+strings.Join(choices, ", "), "invalid choice %q", d.Choice)
	}
	return problems.Err()
}

type cancelRun struct {
	byRun
	Reason string `json:"reason"`
}

// cancel requests the cancellation of a run. It does nothing if the run was already cancelled, and returns
// inventory.ErrConflict if the run has ended in another state.
func (w *workflowRoutes) cancel(ctx context.Context, q cancelRun) (apitypes.Started, error) {
	found, err := w.findOpen(ctx, q.Run)
	started := apitypes.Started{Workflow: found.ID, Run: found.Run}
	switch {
	case found.State == inventory.StateCancelled:
		return started, nil
	case err != nil:
		return apitypes.Started{}, err
	}
	if err := w.runs.Cancel(ctx, found.ID, found.Run); err != nil {
		return apitypes.Started{}, fmt.Errorf("cancelling run %q: %w", found.Run, err)
	}
	w.events.note(ctx, found, inventory.EventOperator, "cancel", map[string]string{"reason": q.Reason})

	return started, nil
}

// reportPoweredOn tells a run that the operator has switched its machine on.
func (w *workflowRoutes) reportPoweredOn(ctx context.Context, q byRun) (apitypes.Started, error) {
	found, err := w.findOpen(ctx, q.Run)
	if err == nil {
		err = w.runs.ReportPoweredOn(ctx, found)
	}
	if err != nil {
		return apitypes.Started{}, err
	}
	w.events.note(ctx, found, inventory.EventOperator, "powered on", struct{}{})

	return apitypes.Started{Workflow: found.ID, Run: found.Run}, nil
}
