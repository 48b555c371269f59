package inventory

import (
	"time"

	"github.com/ingotmetal/ingot/action"
)

// LegacyWorkflow is a workflow in the words and units that Tinkerbell used
// before v0.25.
type LegacyWorkflow struct {
	State         string       `json:"state"`
	CurrentAction string       `json:"currentAction"`
	Tasks         []LegacyTask `json:"tasks"`
}

// LegacyTask is a task of a LegacyWorkflow.
type LegacyTask struct {
	Name    string         `json:"name"`
	Actions []LegacyAction `json:"actions"`
}

// LegacyAction is an action of a LegacyTask.
type LegacyAction struct {
	Name      string     `json:"name"`
	Image     string     `json:"image"`
	Timeout   int64      `json:"timeout"` // seconds
	Status    string     `json:"status"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	Seconds   int64      `json:"seconds"`
	Message   string     `json:"message,omitempty"`
}

// ToLegacyWorkflow converts the record of a run.
func ToLegacyWorkflow(w Workflow) LegacyWorkflow {
	l := LegacyWorkflow{State: LegacyState(w.State), Tasks: []LegacyTask{}}
	for _, a := range w.Actions {
		if n := len(l.Tasks); n == 0 || l.Tasks[n-1].Name != a.Task {
			l.Tasks = append(l.Tasks, LegacyTask{Name: a.Task})
		}
		t := &l.Tasks[len(l.Tasks)-1]
		t.Actions = append(t.Actions, toLegacyAction(a))
		if a.State == action.Running || l.CurrentAction == "" && a.State == action.Pending && !Final(w.State) {
			l.CurrentAction = a.Name
		}
	}
	return l
}

func toLegacyAction(a ActionRecord) LegacyAction {
	out := LegacyAction{
		Name: a.Name, Image: a.Image, Timeout: int64(a.Timeout), Status: LegacyState(string(a.State)),
		Seconds: int64(a.Seconds), Message: a.Message,
	}
	if a.State == action.Stopped { // Tinkerbell had no word for it
		out.Status = LegacyState(StateFailed)
	}
	if !a.StartedAt.IsZero() {
		out.StartedAt = &a.StartedAt
	}
	return out
}
