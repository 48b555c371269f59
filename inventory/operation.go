package inventory

import (
	"encoding/json"
	"time"
)

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

// An Operation is the record of a durable process that is about more than one
// machine, or about this server itself: a bootstrap, a migration, a recovery.
type Operation struct {
	Run string `json:"run"` // Temporal's RunID, of the first execution
	// Execution is the RunID of the execution that goes on under this record after the
	// first one's history was full; "": the first.
	Execution string `json:"execution,omitempty"`
	ID        string `json:"id"`   // workflow id
	Type      string `json:"type"` // Genesis, Migrate, Recover
	Name      string `json:"name"`
	State     string `json:"state"` // as of a Workflow
	// Step is the step under way, or a phase once the operation has ended.
	Step string `json:"step"`
	// Message says what is awaited, or why the operation ended; Next the command
	// that helps.
	Message  string          `json:"message,omitempty"`
	Next     string          `json:"next,omitempty"`
	Question *Question       `json:"question,omitempty"`
	Steps    []OperationStep `json:"steps"`
	Input    json.RawMessage `json:"input,omitempty"`
	Started  time.Time       `json:"started"`
	Ended    time.Time       `json:"ended,omitzero"`
	Updated  time.Time       `json:"updated"`
	// Seq counts what the operation has recorded; see Workflow.
	Seq int64 `json:"seq,omitempty"`
}

// An OperationStep is one row of an operation's table.
type OperationStep struct {
	Name    string `json:"name"`
	Machine string `json:"machine,omitempty"`
	// Does says what the step does, Waits what it waits for before the next one
	// begins, and Undo how it is undone, or why it cannot be.
	Does  string `json:"does"`
	Waits string `json:"waits,omitempty"`
	Undo  string `json:"undo"`
	State string `json:"state"` // StepPending …
	// Run is the machine's run that the step has started.
	Run string `json:"run,omitempty"`
	// Message is what was found or went wrong last.
	Message string        `json:"message,omitempty"`
	Budget  time.Duration `json:"budget"` // nanoseconds in JSON; how long the step may take before an operator is asked
	Since   time.Time     `json:"since,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	// Asked is since when an operator is awaited, and Waited, in nanoseconds, for how
	// long one was before. Neither is work; see Worked.
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

// Resume ends a Wait, if there is one.
func (s *OperationStep) Resume(now time.Time) {
	if !s.Asked.IsZero() {
		s.Waited += max(now.Sub(s.Asked), 0)
		s.Asked = time.Time{}
	}
}

// Worked returns how long the step has been under way at now, without the time in
// which an operator was awaited; zero when it has not begun.
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

// OperationFilter narrows a list of operations; zero fields do not count.
type OperationFilter struct {
	ID   string // workflow id
	Type string
	// State is the state, or FilterWaiting for those with an open question.
	State string
	Open  bool // only those that are not final
	RunPage
	Limit int // 0 = 100
}
