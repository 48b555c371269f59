package engine

import (
	"context"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Stores holds the interfaces to the inventory that the engine reads and writes. Package inventory/sqlite implements
// all of them.
type Stores struct {
	Agents      AgentStore
	Assignments AssignmentStore
	Changes     ChangeStore
	Events      EventStore
	Grants      GrantStore
	Intake      IntakeStore
	Operations  OperationStore
	Workflows   WorkflowStore
	Keyed       KeyedRequestStore // may be nil if no request has an Idempotency-Key
}

// GrantStore holds the grants. A grant says which run owns a machine, and when the time windows of the machine expire,
// such as the netboot window.
type GrantStore interface {
	Grants(ctx context.Context) ([]inventory.Grant, error)
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	EndGrant(ctx context.Context, o inventory.Owner) error
	ShiftWindows(ctx context.Context, from, to time.Time) (int, error)
}

// WorkflowStore holds the records of runs.
type WorkflowStore interface {
	Workflow(ctx context.Context, run string) (inventory.Workflow, error)
	LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error)
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	Resumable(ctx context.Context, run string) error
	PutWorkflow(ctx context.Context, w inventory.Workflow) error
}

// OperationStore holds the records of operations.
type OperationStore interface {
	Operation(ctx context.Context, run string) (inventory.Operation, error)
	Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error)
	PutOperation(ctx context.Context, o inventory.Operation) error
}

// IntakeStore holds whether new runs are accepted. Intake returns the reason why they are refused, or "" if they are accepted.
type IntakeStore interface {
	Intake(ctx context.Context) (why string, err error)
	OpenIntake(ctx context.Context) error
}

// ChangeStore notifies its subscribers of the writes of this process.
type ChangeStore interface {
	Subscribe() (ch <-chan struct{}, cancel func())
}

// AgentStore holds the agents and the logs that they have sent.
type AgentStore interface {
	Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error)
	TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error
	AppendLog(ctx context.Context, o inventory.Owner, k action.Key, text string) error
}

// AssignmentStore holds the attempts that are assigned to agents.
type AssignmentStore interface {
	NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error)
}

// EventStore holds the events of machines and runs, and which of them were sent to their runs.
type EventStore interface {
	Unsignalled(ctx context.Context, after int64, limit int) ([]inventory.Event, error)
	MarkSignalled(ctx context.Context, seqs []int64) error
	AppendEvents(ctx context.Context, es []inventory.Event) error
	Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error)
	PendingSignals(ctx context.Context, o inventory.Owner) (int, error)
}

// KeyedRequestStore stores which workflow a keyed request starts.
type KeyedRequestStore interface {
	SetKeyedWorkflow(ctx context.Context, id, workflow, before string) error
}
