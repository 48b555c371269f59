package inventory

import (
	"time"

	"github.com/ingotmetal/ingot/action"
)

// A TinkerbellWorkflow is a workflow in the form that Tinkerbell had before v0.25.
type TinkerbellWorkflow struct {
	State         string           `json:"state"`
	CurrentAction string           `json:"currentAction"`
	Tasks         []TinkerbellTask `json:"tasks"`
}

// A TinkerbellTask is a task of a TinkerbellWorkflow.
type TinkerbellTask struct {
	Name    string             `json:"name"`
	Actions []TinkerbellAction `json:"actions"`
}

// A TinkerbellAction is an action of a TinkerbellTask.
type TinkerbellAction struct {
	Name      string     `json:"name"`
	Image     string     `json:"image"`
	Timeout   int64      `json:"timeout"` // seconds
	Status    string     `json:"status"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	Seconds   int64      `json:"seconds"`
	Message   string     `json:"message,omitempty"`
}

// Tinkerbell returns w in the form that Tinkerbell had before v0.25.
func (w Workflow) Tinkerbell() TinkerbellWorkflow {
	out := TinkerbellWorkflow{State: LegacyState(w.State), Tasks: []TinkerbellTask{}}
	for _, a := range w.Actions {
		if n := len(out.Tasks); n == 0 || out.Tasks[n-1].Name != a.Task {
			out.Tasks = append(out.Tasks, TinkerbellTask{Name: a.Task})
		}
		t := &out.Tasks[len(out.Tasks)-1]
		t.Actions = append(t.Actions, a.tinkerbell())
		if a.State == action.Running || out.CurrentAction == "" && a.State == action.Pending && !Final(w.State) {
			out.CurrentAction = a.Name
		}
	}

	return out
}

func (a ActionRecord) tinkerbell() TinkerbellAction {
	out := TinkerbellAction{
		Name: a.Name, Image: a.Image, Timeout: int64(a.Timeout), Status: LegacyState(string(a.State)),
		Seconds: int64(a.Seconds), Message: a.Message,
	}
	if a.State == action.Stopped {
		out.Status = LegacyState(StateFailed) // Tinkerbell before v0.25 has no state for a stopped action
	}
	if !a.StartedAt.IsZero() {
		out.StartedAt = &a.StartedAt
	}

	return out
}
