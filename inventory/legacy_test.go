package inventory

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

func TestToLegacyWorkflow(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := Workflow{State: StateFailed, Actions: []ActionRecord{
		{Task: "install", Name: "write", Image: "image2disk", Timeout: 600, State: action.Success, Seconds: 12.5, StartedAt: began},
		{Task: "install", Name: "reboot", State: action.Stopped, Message: "no space left"},
		{Task: "check", Name: "probe", State: action.Pending},
	}}
	require.Equal(t, LegacyWorkflow{State: "STATE_FAILED", Tasks: []LegacyTask{
		{Name: "install", Actions: []LegacyAction{
			{Name: "write", Image: "image2disk", Timeout: 600, Status: "STATE_SUCCESS", Seconds: 12, StartedAt: &began},
			{Name: "reboot", Status: "STATE_FAILED", Message: "no space left"},
		}},
		{Name: "check", Actions: []LegacyAction{{Name: "probe", Status: "STATE_PENDING"}}},
	}}, ToLegacyWorkflow(w))

	w.State = StateRunning
	require.Equal(t, "probe", ToLegacyWorkflow(w).CurrentAction)
	w.Actions[1].State = action.Running
	require.Equal(t, "reboot", ToLegacyWorkflow(Workflow{State: StateRunning, Actions: w.Actions[:2]}).CurrentAction)
}
