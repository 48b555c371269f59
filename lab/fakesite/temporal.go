package fakesite

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
)

// Temporal is the part of a Temporal client that the engine uses: it knows runs,
// and counts a request id once per run.
type Temporal struct {
	client.Client

	Mu      sync.Mutex
	Down    bool
	Runs    map[string]*Run   // by run id
	Latest  map[string]string // run id by workflow id
	Options []client.StartWorkflowOptions
	Types   []string
	Inputs  []any
	Sent    []*workflowservice.SignalWorkflowExecutionRequest // each request that came
	Kept    []*workflowservice.SignalWorkflowExecutionRequest // those that made an event
	Refuse  func(*workflowservice.SignalWorkflowExecutionRequest) error
	Updates []client.UpdateWorkflowOptions
	Update  func(context.Context) error
	Signals []string
	Arrived chan struct{}
	// Late: a start is carried out, and its answer does not come.
	Late bool
	// Called is called before and after each call that starts, signals, updates or cancels a run, or asks for one; nil: nothing.
	Called func()
}

// called calls Called, and returns it for the end of the call.
func (f *Temporal) called() func() {
	if f.Called == nil {
		return func() {}
	}
	f.Called()
	return f.Called
}

// A Run is an execution of a workflow.
type Run struct {
	ID, Run string
	Status  enumspb.WorkflowExecutionStatus
	Result  any
	Cancels int
	Input   any
	Busy    string // with a workflow task, or with an activity
	Memo    map[string]any
	First   string // the run that continued as this one; "": none
}

// NewTemporal returns a Temporal without runs.
func NewTemporal() *Temporal {
	return &Temporal{Runs: map[string]*Run{}, Latest: map[string]string{}, Arrived: make(chan struct{}, 1000)}
}

// Connect returns f, and whether it is ready.
func (f *Temporal) Connect() (client.Client, bool) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f, !f.Down
}

// Open makes a run that is running.
func (f *Temporal) Open(id, run string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Latest[id] = run
	f.Runs[run] = &Run{ID: id, Run: run, Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
}

// End ends a run.
func (f *Temporal) End(run string, status enumspb.WorkflowExecutionStatus, result any) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Runs[run].Status, f.Runs[run].Result = status, result
}

// Requests returns the signals that came, and those that made an event.
func (f *Temporal) Requests() (sent, kept []*workflowservice.SignalWorkflowExecutionRequest) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return append(sent, f.Sent...), append(kept, f.Kept...)
}

// ExecuteWorkflow is the method of client.Client.
func (f *Temporal) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, kind any, args ...any) (client.WorkflowRun, error) {
	defer f.called()()
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Options, f.Types, f.Inputs = append(f.Options, o), append(f.Types, kind.(string)), append(f.Inputs, args[0])
	if latest := f.Latest[o.ID]; latest != "" && o.WorkflowIDReusePolicy == enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE {
		return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("already started", "", latest)
	}
	for _, r := range f.Runs {
		if r.ID == o.ID && r.Status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			if o.WorkflowIDConflictPolicy != enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL || !o.WorkflowExecutionErrorWhenAlreadyStarted {
				return fakeHandle{f, r}, nil // as the SDK does: the open run, as if it were new
			}
			return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("already started", "", r.Run)
		}
	}
	r := &Run{
		ID:     o.ID,
		Run:    fmt.Sprintf("run-%d", len(f.Runs)+1),
		Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING,
		Memo:   o.Memo,
		Input:  args[0],
	}
	f.Runs[r.Run], f.Latest[o.ID] = r, r.Run
	if f.Late {
		return nil, context.DeadlineExceeded
	}
	return fakeHandle{f, r}, nil
}

// GetWorkflowHistory is the method of client.Client. It returns the first event alone.
func (f *Temporal) GetWorkflowHistory(
	_ context.Context, id, run string, _ bool, _ enumspb.HistoryEventFilterType,
) client.HistoryEventIterator {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	r, err := f.find(id, run)
	return firstEvent{r, err}
}

// firstEvent is an iterator over the first event of a run.
type firstEvent struct {
	run *Run
	err error
}

// HasNext is the method of client.HistoryEventIterator.
func (e firstEvent) HasNext() bool { return true }

// Next is the method of client.HistoryEventIterator.
func (e firstEvent) Next() (*historypb.HistoryEvent, error) {
	if e.err != nil {
		return nil, e.err
	}
	input, err := converter.GetDefaultDataConverter().ToPayloads(e.run.Input)
	return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
		WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{Input: input},
	}}, err
}

func (f *Temporal) find(id, run string) (*Run, error) {
	if run == "" {
		run = f.Latest[id]
	}
	if r := f.Runs[run]; r != nil && r.ID == id {
		return r, nil
	}
	return nil, serviceerror.NewNotFound("workflow execution not found")
}

// DescribeWorkflowExecution is the method of client.Client.
func (f *Temporal) DescribeWorkflowExecution(_ context.Context, id,
	run string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	defer f.called()()
	f.Mu.Lock()
	defer f.Mu.Unlock()
	r, err := f.find(id, run)
	if err != nil {
		return nil, err
	}
	memo := &commonpb.Memo{Fields: map[string]*commonpb.Payload{}}
	for name, v := range r.Memo {
		if memo.Fields[name], err = converter.GetDefaultDataConverter().ToPayload(v); err != nil {
			return nil, err
		}
	}
	d := &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: r.Run}, Status: r.Status, Memo: memo, FirstRunId: r.First,
	}}
	switch r.Busy {
	case "task":
		d.PendingWorkflowTask = &workflowpb.PendingWorkflowTaskInfo{}
	case "activity":
		d.PendingActivities = []*workflowpb.PendingActivityInfo{{}}
	}
	return d, nil
}

// CheckHealth is the method of client.Client.
func (f *Temporal) CheckHealth(context.Context, *client.CheckHealthRequest) (*client.CheckHealthResponse, error) {
	return &client.CheckHealthResponse{}, nil
}

// CountWorkflow is the method of client.Client.
func (f *Temporal) CountWorkflow(context.Context,
	*workflowservice.CountWorkflowExecutionsRequest,
) (*workflowservice.CountWorkflowExecutionsResponse, error) {
	return &workflowservice.CountWorkflowExecutionsResponse{}, nil
}

// CancelWorkflow is the method of client.Client.
func (f *Temporal) CancelWorkflow(_ context.Context, id, run string) error {
	defer f.called()()
	f.Mu.Lock()
	defer f.Mu.Unlock()
	r, err := f.find(id, run)
	if err != nil {
		return err
	}
	if r.Status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return serviceerror.NewNotFound("workflow execution already completed")
	}
	r.Cancels++
	return nil
}

// SignalWorkflow is the method of client.Client.
func (f *Temporal) SignalWorkflow(_ context.Context, id, run, name string, _ any) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if _, err := f.find(id, run); err != nil {
		return err
	}
	f.Signals = append(f.Signals, name)
	return nil
}

// UpdateWorkflow is the method of client.Client.
func (f *Temporal) UpdateWorkflow(ctx context.Context, o client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error) {
	defer f.called()()
	f.Mu.Lock()
	f.Updates = append(f.Updates, o)
	do := f.Update
	f.Mu.Unlock()
	if do != nil {
		if err := do(ctx); err != nil {
			return nil, err
		}
	}
	return fakeUpdate{}, nil
}

// GetWorkflow is the method of client.Client.
func (f *Temporal) GetWorkflow(_ context.Context, _, run string) client.WorkflowRun {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return fakeHandle{f, f.Runs[run]}
}

// WorkflowService is the method of client.Client.
func (f *Temporal) WorkflowService() workflowservice.WorkflowServiceClient {
	return fakeService{f: f}
}

// fakeService is the raw interface.
type fakeService struct {
	workflowservice.WorkflowServiceClient
	f *Temporal
}

func (s fakeService) SignalWorkflowExecution(_ context.Context, r *workflowservice.SignalWorkflowExecutionRequest,
	_ ...grpc.CallOption,
) (*workflowservice.SignalWorkflowExecutionResponse, error) {
	f := s.f
	defer f.called()()
	f.Mu.Lock()
	defer f.Mu.Unlock()
	defer func() { f.Arrived <- struct{}{} }()
	f.Sent = append(f.Sent, r)
	if f.Refuse != nil {
		if err := f.Refuse(r); err != nil {
			return nil, err
		}
	}
	run, err := f.find(r.WorkflowExecution.WorkflowId, r.WorkflowExecution.RunId)
	if err != nil {
		return nil, err
	}
	if run.Status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return nil, serviceerror.NewNotFound("workflow execution already completed")
	}
	for _, k := range f.Kept {
		if k.RequestId == r.RequestId && k.WorkflowExecution.RunId == r.WorkflowExecution.RunId {
			return &workflowservice.SignalWorkflowExecutionResponse{}, nil
		}
	}
	f.Kept = append(f.Kept, r)
	return &workflowservice.SignalWorkflowExecutionResponse{}, nil
}

type fakeHandle struct {
	f *Temporal
	r *Run
}

func (h fakeHandle) GetID() string                  { return h.r.ID }
func (h fakeHandle) GetRunID() string               { return h.r.Run }
func (h fakeHandle) GetFirstExecutionRunID() string { return h.r.Run }
func (h fakeHandle) Get(_ context.Context, v any) error {
	h.f.Mu.Lock()
	defer h.f.Mu.Unlock()
	b, err := json.Marshal(h.r.Result)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func (h fakeHandle) GetWithOptions(ctx context.Context, v any, _ client.WorkflowRunGetOptions) error {
	return h.Get(ctx, v)
}

type fakeUpdate struct{ client.WorkflowUpdateHandle }

func (fakeUpdate) Get(context.Context, any) error { return nil }
