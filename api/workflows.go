package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
	"github.com/ingotmetal/ingot/workflows"
)

type workflowStore interface {
	Workflow(ctx context.Context, run string) (inventory.Workflow, error)
	LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error)
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	DeleteWorkflow(ctx context.Context, run, by string) error
	Resumable(ctx context.Context, run string) error
	Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error)
	AppendEvents(ctx context.Context, es []inventory.Event) error
	Log(ctx context.Context, run string, actionIndex, attempt int) (string, error)
}

// defaultTemplate is what a machine without a template gets.
const defaultTemplate = template.BuiltinImage

// asked is how long a request may wait for Temporal, and a decision for its worker.
const asked = 5 * time.Second

// Started is a run that has begun.
type Started struct {
	Workflow string `json:"workflow"`
	Run      string `json:"run"`
	Job      string `json:"job,omitempty"`
}

// temporal returns the client, or says that Temporal is not there.
func (s *Server) temporal() (client.Client, error) {
	if tc, ok := s.cfg.Temporal(); ok {
		return tc, nil
	}
	return nil, hint{fmt.Errorf("workflows cannot be started or changed until Temporal is back; inventory, DHCP and metadata work without: %w", errUnavailable), "ingot status"}
}

// freshRuns remembers runs that were started here until their own record
// exists: the worker may be busy, or away.
type freshRuns struct {
	mu   sync.Mutex
	runs map[string]inventory.Workflow
}

const (
	maxFresh = 1000
	freshFor = time.Hour
)

func (f *freshRuns) add(w inventory.Workflow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs == nil {
		f.runs = map[string]inventory.Workflow{}
	}
	for run, old := range f.runs {
		if w.Started.Sub(old.Started) > freshFor {
			delete(f.runs, run)
		}
	}
	if len(f.runs) < maxFresh {
		f.runs[w.Run] = w
	}
}

func (f *freshRuns) get(run string) (inventory.Workflow, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.runs[run]
	return w, ok
}

func (f *freshRuns) drop(run string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.runs, run)
}

// of returns machine's run that started last.
func (f *freshRuns) of(machine string) (newest inventory.Workflow, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.runs {
		if w.Machine == machine && w.Type != workflows.BMCJobType && (!ok || w.Started.After(newest.Started)) {
			newest, ok = w, true
		}
	}
	return newest, ok
}

// newest returns the run of each machine that started last.
func (f *freshRuns) newest() map[string]inventory.Workflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]inventory.Workflow{}
	for _, w := range f.runs {
		if old, ok := out[w.Machine]; w.Type != workflows.BMCJobType && (!ok || w.Started.After(old.Started)) {
			out[w.Machine] = w
		}
	}
	return out
}

// withID returns the run that was started last under a workflow id.
func (f *freshRuns) withID(id string) (newest inventory.Workflow, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.runs {
		if w.ID == id && (!ok || w.Started.After(newest.Started)) {
			newest, ok = w, true
		}
	}
	return newest, ok
}

// workflow returns the record of a run, or what is known of one that has only
// just been started.
func (s *Server) workflow(ctx context.Context, run string) (inventory.Workflow, error) {
	w, err := s.cfg.Store.Workflow(ctx, run)
	switch {
	case err == nil:
		s.fresh.drop(run)
		return w, nil
	case errors.Is(err, inventory.ErrNotFound):
		if w, ok := s.fresh.get(run); ok {
			return w, nil
		}
		err = hint{fmt.Errorf("workflow run %q: %w", run, inventory.ErrNotFound), "ingot workflow list"}
	}
	return w, err
}

// latest returns the newest run of a machine.
func (s *Server) latest(ctx context.Context, machine string) (inventory.Workflow, error) {
	w, err := s.cfg.Store.LatestWorkflow(ctx, machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return w, err
	}
	if f, ok := s.fresh.of(machine); ok && (err != nil || f.Started.After(w.Started)) {
		if stored, e := s.cfg.Store.Workflow(ctx, f.Run); e == nil {
			s.fresh.drop(f.Run)
			return stored, nil
		}
		return f, nil
	}
	return w, err
}

// summary is w without what is long, and with the progress that agents tell.
func (s *Server) summary(w inventory.Workflow) inventory.Workflow {
	w = s.withProgress(w)
	w.Input = nil
	for i := range w.Actions {
		w.Actions[i].Log = ""
	}
	return w
}

// retrying is what of a run fails and is tried again. Nothing is while a person
// is awaited: then attempts are used up.
func (s *Server) retrying(w inventory.Workflow) []string {
	if s.cfg.Retrying == nil || inventory.Final(w.State) || w.Phase == inventory.PhaseWaiting {
		return nil
	}
	return s.cfg.Retrying(w.Run)
}

// withProgress adds to a running action what its agent said of it last, and to
// an open run what is tried again. The actions are a copy.
func (s *Server) withProgress(w inventory.Workflow) inventory.Workflow {
	w.Actions = append([]inventory.ActionRecord{}, w.Actions...)
	w.Retrying = s.retrying(w)
	p, ok := s.agents.progress(inventory.Owner{Machine: w.Machine, Run: w.Run, Epoch: w.Epoch})
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

// start is one workflow to be started.
type start struct {
	id, kind          string
	machine, template string
	image             string
	input             any
}

// run starts w. When a run of the same id is open, the answer names it.
func (s *Server) run(ctx context.Context, w start) (Started, error) {
	tc, err := s.temporal()
	if err != nil {
		return Started{}, err
	}
	raw, err := json.Marshal(w.input)
	if err != nil {
		return Started{}, fmt.Errorf("encoding the input of %q: %w", w.id, err)
	}
	var attrs []temporal.SearchAttributeUpdate
	if w.machine != "" {
		attrs = append(attrs, temporal.NewSearchAttributeKeyKeyword(workflows.AttrMachine).ValueSet(w.machine))
	}
	if w.template != "" {
		attrs = append(attrs, temporal.NewSearchAttributeKeyKeyword(workflows.AttrTemplate).ValueSet(w.template))
	}
	ctx, cancel := context.WithTimeout(ctx, 2*asked)
	defer cancel()
	begun := s.cfg.Now()
	run, err := tc.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:        w.id,
		TaskQueue: workflows.TaskQueue,
		// Both are needed, or the SDK hands back the open run as if it were new.
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		TypedSearchAttributes:                    temporal.NewSearchAttributes(attrs...),
		// The worker beside this API begins at once, where there is one.
		EnableEagerStart: true,
	}, w.kind, w.input)
	var busy *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &busy) {
		return Started{}, s.busy(w.machine, w.id, busy.RunId)
	}
	if err != nil {
		return Started{}, fmt.Errorf("starting %q: %w", w.id, err)
	}
	s.fresh.add(inventory.Workflow{
		Run: run.GetRunID(), ID: w.id, Type: w.kind, Machine: w.machine, Template: w.template, Image: w.image,
		State: inventory.StatePreparing, Phase: inventory.PhasePlan, Message: "waiting for a worker",
		Actions: []inventory.ActionRecord{}, Input: raw, Started: begun, Updated: begun,
	})
	if w.machine != "" {
		s.board.touch(w.machine)
	}
	s.agents.changed.notify()
	return Started{Workflow: w.id, Run: run.GetRunID()}, nil
}

// busy is the refusal of a second workflow.
func (s *Server) busy(machine, id, run string) error {
	return hint{
		fmt.Errorf("machine %q is busy: workflow %s is running as run %s: %w", machine, id, run, inventory.ErrConflict),
		"ingot workflow get " + run,
	}
}

// Installation is the body of the routes that install a machine: what of the
// machine's own is replaced for this run.
type Installation struct {
	Template    string            `json:"template,omitempty"`
	Image       string            `json:"image,omitempty"`
	Retries     workflows.Retries `json:"retries,omitzero"`
	Policy      string            `json:"policy,omitempty"`
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
}

// install begins a run of the given type, Provision or Reprovision, on the
// machine that the path names.
func (s *Server) install(kind string) gin.HandlerFunc {
	return func(c *gin.Context) {
		var in Installation
		if err := body(c, &in, true); err != nil {
			s.fail(c, err)
			return
		}
		s.begin(c)(s.provision(c.Request.Context(), kind, workflows.ProvisionInput{
			Machine: c.Param("name"), Template: in.Template, Image: in.Image, Retries: in.Retries, Policy: in.Policy, HardwareMap: in.HardwareMap,
		}))
	}
}

// begin answers with a run that was started, or with why not.
func (s *Server) begin(c *gin.Context) func(Started, error) {
	return func(st Started, err error) {
		if err != nil {
			s.fail(c, err)
			return
		}
		c.JSON(http.StatusAccepted, st)
	}
}

// provision checks in and starts it, as a Provision or a Reprovision.
func (s *Server) provision(ctx context.Context, kind string, in workflows.ProvisionInput) (Started, error) {
	if err := s.room(ctx); err != nil {
		return Started{}, err
	}
	m, err := s.knownMachine(ctx, in.Machine)
	if err != nil {
		return Started{}, err
	}
	if err := released(m); err != nil {
		return Started{}, err
	}
	if in.Resume != "" {
		// The run itself asks again, where it takes the machine.
		if err := s.cfg.Store.Resumable(ctx, in.Resume); err != nil {
			return Started{}, hint{err, retryFromStart(in.Resume)}
		}
	}
	name, image := first(in.Template, m.Template, defaultTemplate), first(in.Image, m.Image)
	var problems inventory.Problems
	if _, err := s.template(ctx, name); errors.Is(err, inventory.ErrNotFound) {
		problems.Add("template", "ingot template list", "there is no template %q", name)
	} else if err != nil {
		return Started{}, err
	}
	if image != "" {
		if _, err := s.image(ctx, image); errors.Is(err, inventory.ErrNotFound) {
			problems.Add("image", "ingot image list", "there is no image %q", image)
		} else if err != nil {
			return Started{}, err
		}
	} else if name == defaultTemplate && in.Resume == "" {
		problems.Add("image", "name one, or set the machine's image", "template %q writes an image, and none is named", name)
	}
	if in.Retries.Count < 0 || in.Retries.Count > 10 {
		problems.Add("retries.count", "", "%d is not between 0 and 10", in.Retries.Count)
	}
	if f := in.Retries.From; f != "" && f != fromFailed && f != fromStart {
		problems.Add("retries.from", "", "%q is neither %s nor %s", f, fromFailed, fromStart)
	}
	if p := in.Policy; p != "" && p != workflows.Fail && p != workflows.Pause {
		problems.Add("policy", "", "%q is neither %s nor %s", p, workflows.Fail, workflows.Pause)
	}
	if err := problems.Err(); err != nil {
		return Started{}, err
	}
	return s.run(ctx, start{
		id: workflows.MachineID(m.Name), kind: kind, machine: m.Name, template: name, image: image, input: in,
	})
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func (s *Server) inspectMachine(c *gin.Context) {
	var in struct{}
	if err := body(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	s.begin(c)(s.inspect(c.Request.Context(), workflows.InspectInput{Machine: c.Param("name")}))
}

func (s *Server) inspect(ctx context.Context, in workflows.InspectInput) (Started, error) {
	if err := s.room(ctx); err != nil {
		return Started{}, err
	}
	m, err := s.knownMachine(ctx, in.Machine)
	if err != nil {
		return Started{}, err
	}
	return s.run(ctx, start{id: workflows.MachineID(m.Name), kind: workflows.InspectType, machine: m.Name, input: in})
}

func (s *Server) listWorkflows(c *gin.Context) {
	f := inventory.WorkflowFilter{Machine: c.Query("machine"), State: c.Query("state")}
	var err error
	var ws []inventory.Workflow
	if f.Open, f.Limit, err = openAndLimit(c); err == nil {
		ws, err = s.cfg.Store.Workflows(c.Request.Context(), f)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	for i := range ws {
		ws[i] = s.summary(ws[i])
	}
	c.JSON(http.StatusOK, items(ws))
}

// openAndLimit reads what lists of runs and operations have in common: whether
// only those that are not over are wanted, and how many at the most.
func openAndLimit(c *gin.Context) (open bool, limit int, err error) {
	if v := c.Query("open"); v != "" {
		if open, err = strconv.ParseBool(v); err != nil {
			return false, 0, invalid("open", "true or false", "%q is neither", v)
		}
	}
	n, err := intQuery(c, "limit", 100)
	return open, int(min(max(n, 1), 1000)), err
}

// createWorkflow is the trigger of every type of workflow.
func (s *Server) createWorkflow(c *gin.Context) {
	var in struct {
		Type  string          `json:"type"`
		Input json.RawMessage `json:"input"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	switch in.Type {
	case workflows.ProvisionType, workflows.ReprovisionType:
		var p workflows.ProvisionInput
		if err := strict(in.Input, &p); err != nil {
			s.fail(c, err)
			return
		}
		if p.Resume != "" {
			old, err := s.workflow(c.Request.Context(), p.Resume)
			if err == nil && old.Machine != p.Machine {
				err = invalid("input.resume", "", "run %q was of machine %q", p.Resume, old.Machine)
			}
			if err != nil {
				s.fail(c, err)
				return
			}
		}
		s.begin(c)(s.provision(c.Request.Context(), in.Type, p))
	case workflows.DecommissionType:
		var p workflows.DecommissionInput
		if err := strict(in.Input, &p); err != nil {
			s.fail(c, err)
			return
		}
		s.begin(c)(s.decommission(c.Request.Context(), p))
	case workflows.RecoverType:
		var p workflows.RecoverInput
		if err := strict(in.Input, &p); err != nil {
			s.fail(c, err)
			return
		}
		s.begin(c)(s.recover(c.Request.Context(), p))
	case workflows.InspectType:
		var p workflows.InspectInput
		if err := strict(in.Input, &p); err != nil {
			s.fail(c, err)
			return
		}
		s.begin(c)(s.inspect(c.Request.Context(), p))
	case workflows.BMCJobType:
		var p workflows.BMCJobInput
		if err := strict(in.Input, &p); err != nil {
			s.fail(c, err)
			return
		}
		s.begin(c)(s.bmcJob(c.Request.Context(), p))
	default:
		s.fail(c, invalid("type", "Provision, Reprovision, Decommission, Inspect, BMCJob or Recover", "there is no workflow type %q", in.Type))
	}
}

func (s *Server) getWorkflow(c *gin.Context) {
	w, err := s.workflow(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	s.showWorkflow(c, w)
}

// showWorkflow answers with w, in the old words when ?legacy=1.
func (s *Server) showWorkflow(c *gin.Context, w inventory.Workflow) {
	w = s.withProgress(w)
	if w.Resumes() && errors.Is(s.cfg.Store.Resumable(c.Request.Context(), w.Run), inventory.ErrConflict) {
		w.Next = retryFromStart(w.Run)
	}
	if old, err := strconv.ParseBool(c.DefaultQuery("legacy", "0")); err != nil {
		s.fail(c, invalid("legacy", "0 or 1", "%q is neither", c.Query("legacy")))
	} else if old {
		c.JSON(http.StatusOK, legacy(w))
	} else {
		c.JSON(http.StatusOK, w)
	}
}

// legacyWorkflow is a workflow in the fields that Tinkerbell used before v0.25.
type legacyWorkflow struct {
	State         string       `json:"state"`
	CurrentAction string       `json:"currentAction"`
	Tasks         []legacyTask `json:"tasks"`
}

type legacyTask struct {
	Name    string         `json:"name"`
	Actions []legacyAction `json:"actions"`
}

type legacyAction struct {
	Name      string     `json:"name"`
	Image     string     `json:"image"`
	Timeout   int64      `json:"timeout"` // seconds
	Status    string     `json:"status"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	Seconds   int64      `json:"seconds"`
	Message   string     `json:"message,omitempty"`
}

func legacy(w inventory.Workflow) legacyWorkflow {
	l := legacyWorkflow{State: inventory.LegacyState(w.State), Tasks: []legacyTask{}}
	for _, a := range w.Actions {
		if n := len(l.Tasks); n == 0 || l.Tasks[n-1].Name != a.Task {
			l.Tasks = append(l.Tasks, legacyTask{Name: a.Task})
		}
		t := &l.Tasks[len(l.Tasks)-1]
		old := legacyAction{Name: a.Name, Image: a.Image, Timeout: int64(a.Timeout), Status: inventory.LegacyState(string(a.State)), Seconds: int64(a.Seconds), Message: a.Message}
		if a.State == action.Stopped {
			old.Status = inventory.LegacyState(inventory.StateFailed) // there was no word for it
		}
		if !a.StartedAt.IsZero() {
			old.StartedAt = &a.StartedAt
		}
		t.Actions = append(t.Actions, old)
		if a.State == action.Running || l.CurrentAction == "" && a.State == action.Pending && !inventory.Final(w.State) {
			l.CurrentAction = a.Name
		}
	}
	return l
}

func (s *Server) deleteWorkflow(c *gin.Context) {
	if err := s.cfg.Store.DeleteWorkflow(c.Request.Context(), c.Param("run"), by(c)); err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

func (s *Server) workflowEvents(c *gin.Context) {
	w, err := s.workflow(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	s.events(c, inventory.EventFilter{Machine: w.Machine, Run: w.Run})
}

func (s *Server) workflowLogs(c *gin.Context) {
	w, err := s.workflow(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	index, err := actionIndex(w, c.Query("action"))
	if err != nil {
		s.fail(c, err)
		return
	}
	attempt, err := intQuery(c, "attempt", 0)
	if err != nil {
		s.fail(c, err)
		return
	}
	// What the agent said since the last flush belongs to the log, too.
	s.agents.flushOrLog(c.Request.Context())
	text, err := s.cfg.Store.Log(c.Request.Context(), w.Run, index, int(min(attempt, 1<<20)))
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		s.fail(c, err)
		return
	}
	c.Data(http.StatusOK, "text/plain; charset=utf-8", []byte(text))
}

// actionIndex finds an action by index or name; "" is the one that matters
// most: the first that did not succeed, or the last.
func actionIndex(w inventory.Workflow, name string) (int, error) {
	if len(w.Actions) == 0 {
		return 0, fmt.Errorf("run %q has no actions: %w", w.Run, inventory.ErrNotFound)
	}
	if name == "" {
		for i, a := range w.Actions {
			if a.State != action.Success {
				return i, nil
			}
		}
		return len(w.Actions) - 1, nil
	}
	for i, a := range w.Actions {
		if a.Name == name {
			return i, nil
		}
	}
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(w.Actions) {
		return i, nil
	}
	return 0, fmt.Errorf("action %q of run %q: %w", name, w.Run, inventory.ErrNotFound)
}

// Where a retry begins again.
const (
	fromFailed = "failed-step"
	fromStart  = "start"
)

func retryFromStart(run string) string { return "ingot workflow retry " + run + " --from " + fromStart }

// retryWorkflow starts a new run with a new grant.
func (s *Server) retryWorkflow(c *gin.Context) {
	var in struct {
		From string `json:"from"`
	}
	if err := body(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	w, err := s.workflow(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	if in.From == "" {
		in.From = fromFailed
	}
	switch {
	case in.From != fromFailed && in.From != fromStart:
		err = invalid("from", "", "%q is neither %s nor %s", in.From, fromFailed, fromStart)
	case !inventory.Final(w.State):
		err = s.busy(w.Machine, w.ID, w.Run)
	case in.From == fromFailed && w.State == inventory.StateSuccess:
		err = hint{fmt.Errorf("run %q succeeded, there is no failed step: %w", w.Run, inventory.ErrConflict), retryFromStart(w.Run)}
	case w.Type == workflows.BMCJobType:
		err = hint{fmt.Errorf("run %q is a BMC job, create it again: %w", w.Run, inventory.ErrConflict), "ingot bmc job create"}
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	if w.Type == workflows.InspectType {
		s.begin(c)(s.inspect(c.Request.Context(), workflows.InspectInput{Machine: w.Machine}))
		return
	}
	if w.Type == workflows.DecommissionType {
		again := workflows.DecommissionInput{Machine: w.Machine}
		if len(w.Input) > 0 {
			if err := json.Unmarshal(w.Input, &again); err != nil {
				s.fail(c, fmt.Errorf("reading the input of run %q: %w", w.Run, err))
				return
			}
		}
		s.begin(c)(s.decommission(c.Request.Context(), again))
		return
	}
	again := workflows.ProvisionInput{Machine: w.Machine, Template: w.Template, Image: w.Image}
	if len(w.Input) > 0 {
		if err := json.Unmarshal(w.Input, &again); err != nil {
			s.fail(c, fmt.Errorf("reading the input of run %q: %w", w.Run, err))
			return
		}
	}
	again.Resume = ""
	if in.From == fromFailed {
		again.Resume = w.Run
	}
	s.begin(c)(s.provision(c.Request.Context(), w.Type, again))
}

// open returns the run that the path names when it is not over.
func (s *Server) open(c *gin.Context) (inventory.Workflow, client.Client, error) {
	w, err := s.workflow(c.Request.Context(), c.Param("run"))
	if err != nil {
		return w, nil, err
	}
	if inventory.Final(w.State) {
		return w, nil, hint{fmt.Errorf("run %q ended as %s: %w", w.Run, w.State, inventory.ErrConflict), "ingot workflow get " + w.Run}
	}
	tc, err := s.temporal()
	return w, tc, err
}

func (s *Server) decideWorkflow(c *gin.Context) {
	var d workflows.Decision
	if err := body(c, &d, false); err != nil {
		s.fail(c, err)
		return
	}
	w, tc, err := s.open(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	if err := decision(d, "GET /v1/workflows/"+w.Run, workflows.Retry, workflows.Skip, workflows.Restart, workflows.Abort, workflows.Continue); err != nil {
		s.fail(c, err)
		return
	}
	d.By = by(c)
	if err := s.tell(c.Request.Context(), tc, w.ID, w.Run, d, "ingot workflow get "+w.Run); err != nil {
		s.fail(c, err)
		return
	}
	s.note(c, w, inventory.EventDecision, d.Choice, d)
	c.JSON(http.StatusOK, gin.H{"question": d.Question, "choice": d.Choice})
}

// decision checks d before anybody is asked. where is the route that shows the
// question.
func decision(d workflows.Decision, where string, choices ...string) error {
	var problems inventory.Problems
	if d.Question == "" {
		problems.Add("question", "its id is in "+where, "is missing")
	}
	if !slices.Contains(choices, d.Choice) {
		problems.Add("choice", "one of "+strings.Join(choices, ", "), "%q is no choice", d.Choice)
	}
	return problems.Err()
}

// tell passes a decision on to a run: by an update, because a person wants to
// hear what is wrong with it. look is the command that shows the run.
func (s *Server) tell(ctx context.Context, tc client.Client, id, run string, d workflows.Decision, look string) error {
	ctx, cancel := context.WithTimeout(ctx, asked)
	defer cancel()
	h, err := tc.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: id, RunID: run, UpdateName: workflows.UpdateDecide, Args: []any{d},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = h.Get(ctx, nil)
	}
	var refused *temporal.ApplicationError
	var late *client.WorkflowUpdateServiceTimeoutOrCanceledError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return hint{invalid("", "", "%s", refused.Message()), look}
	case ctx.Err() != nil || errors.As(err, &late):
		return hint{fmt.Errorf("no worker took the decision within %s; look whether it was taken before you decide again: %w", asked, errUnavailable), look}
	}
	return fmt.Errorf("deciding %q of run %q: %w", d.Question, run, err)
}

// note records what a person did to a run. The deed is done: that it could
// not be recorded is only logged.
func (s *Server) note(c *gin.Context, w inventory.Workflow, kind, message string, detail any) {
	raw, err := json.Marshal(detail)
	if err == nil {
		now := s.cfg.Now()
		err = s.cfg.Store.AppendEvents(context.WithoutCancel(c.Request.Context()), []inventory.Event{{
			Machine: w.Machine, Run: w.Run, Epoch: w.Epoch, Kind: kind, At: now, Count: 1,
			Key: "api-" + strconv.FormatInt(now.UnixNano(), 36), Message: message, Detail: raw, By: by(c),
		}})
	}
	if err != nil {
		s.cfg.Log.Warn("recording what a person did", "machine", w.Machine, "run", w.Run, "error", err)
	}
}

// cancelWorkflow asks a run to end. It may be asked again.
func (s *Server) cancelWorkflow(c *gin.Context) {
	var in struct {
		Reason string `json:"reason"`
	}
	if err := body(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	w, err := s.workflow(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	done := Started{Workflow: w.ID, Run: w.Run}
	if inventory.Final(w.State) {
		c.JSON(http.StatusAccepted, done)
		return
	}
	tc, err := s.temporal()
	if err != nil {
		s.fail(c, err)
		return
	}
	if err := cancel(c.Request.Context(), tc, w.ID, w.Run); err != nil {
		s.fail(c, fmt.Errorf("cancelling run %q: %w", w.Run, err))
		return
	}
	s.note(c, w, inventory.EventOperator, "cancel", in)
	c.JSON(http.StatusAccepted, done)
}

// cancel asks a run to end. One that Temporal calls over needs no asking:
// reconcile repairs its record.
func cancel(ctx context.Context, tc client.Client, id, run string) error {
	ctx, stop := context.WithTimeout(ctx, asked)
	defer stop()
	err := tc.CancelWorkflow(ctx, id, run)
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		return nil
	}
	return err
}

func (s *Server) poweredOn(c *gin.Context) {
	w, tc, err := s.open(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), asked)
	defer cancel()
	if err := tc.SignalWorkflow(ctx, w.ID, w.Run, workflows.SignalPoweredOn, nil); err != nil {
		s.fail(c, fmt.Errorf("telling run %q that the power is on: %w", w.Run, err))
		return
	}
	s.note(c, w, inventory.EventOperator, "powered on", struct{}{})
	c.JSON(http.StatusAccepted, Started{Workflow: w.ID, Run: w.Run})
}
