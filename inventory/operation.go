package inventory

import (
	"encoding/json"
	"regexp"
	"time"
)

// OperationName is the pattern for names of operations: they are valid in URL paths and workflow ids.
var OperationName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// States of an operation's step.
const (
	StepPending = "pending"
	StepRunning = "running"
	StepWaiting = "waiting" // for an operator
	StepDone    = "done"
	StepFailed  = "failed"
	StepUndone  = "undone"
	StepSkipped = "skipped"
)

// An Operation is the record of a workflow that handles several machines or this server itself: Genesis, Migrate, Recover or
// ProvisionTogether.
type Operation struct {
	Run string `json:"run"` // Temporal's RunID of the first execution
	// Execution is the RunID of the execution that now continues this operation: when the history of an execution is full, another one follows
	// it (continue-as-new). "" = the first execution.
	Execution string `json:"execution,omitempty"`
	ID        string `json:"id"`   // workflow id
	Type      string `json:"type"` // Genesis, Migrate, Recover, ProvisionTogether
	Name      string `json:"name"`
	State     string `json:"state"` // one of the states of a Workflow
	// Step is the name of the current step, or a phase if the operation has ended.
	Step string `json:"step"`
	// Message says what the operation waits for, or why it ended. Next is the command with which an operator can continue.
	Message  string          `json:"message,omitempty"`
	Next     string          `json:"next,omitempty"`
	Question *Question       `json:"question,omitempty"`
	Steps    []OperationStep `json:"steps"`
	Input    json.RawMessage `json:"input,omitempty"`
	By       string          `json:"by,omitempty"` // see Workflow
	Started  time.Time       `json:"started"`
	Ended    time.Time       `json:"ended,omitzero"`
	Updated  time.Time       `json:"updated"`
	// Seq numbers the records that the operation writes; see Workflow.
	Seq int64 `json:"seq,omitempty"`
}

// An OperationStep is one step of an operation.
type OperationStep struct {
	Name    string `json:"name"`
	Machine string `json:"machine,omitempty"`
	// Does is what the step does. Waits is what the step waits for before the next step begins. Undo is how the step is undone,
	// or why it cannot be undone.
	Does  string `json:"does"`
	Waits string `json:"waits,omitempty"`
	Undo  string `json:"undo"`
	State string `json:"state"` // StepPending …
	// Run is the run of the machine; the step has started this run.
	Run string `json:"run,omitempty"`
	// Message is the latest result or error.
	Message string        `json:"message,omitempty"`
	Budget  time.Duration `json:"budget"` // how long the step may take before an operator is asked; nanoseconds in JSON
	Since   time.Time     `json:"since,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	// Asked is when the present wait for an operator began; zero = the step does not wait. Waited is the duration of all earlier waits, in
	// nanoseconds in JSON. Worked leaves out the present wait and the earlier ones.
	Asked  time.Time     `json:"asked,omitzero"`
	Waited time.Duration `json:"waited,omitempty"`
}

// Wait records that the step waits for an operator from now on.
func (s *OperationStep) Wait(now time.Time) {
	s.State = StepWaiting
	if s.Asked.IsZero() {
		s.Asked = now
	}
}

// Resume ends the wait for an operator that Wait began, if there is one.
func (s *OperationStep) Resume(now time.Time) {
	if !s.Asked.IsZero() {
		s.Waited += max(now.Sub(s.Asked), 0)
		s.Asked = time.Time{}
	}
}

// Worked returns how long the step has run until now, without its waits for an operator. It is zero if the step has not begun.
func (s OperationStep) Worked(now time.Time) time.Duration {
	until := now
	for _, t := range []time.Time{s.Ended, s.Asked} {
		if !t.IsZero() && t.Before(until) {
			until = t
		}
	}
	if s.Since.IsZero() {
		return 0
	}
	return max(until.Sub(s.Since)-s.Waited, 0)
}

// OperationFilter selects operations. A field that is zero selects all.
type OperationFilter struct {
	ID   string // workflow id
	Type string
	// State is the state to select. FilterWaiting selects the operations with an open question.
	State string
	Open  bool // only operations that have not ended
	RunPage
	Limit int // 0 = 100
}
