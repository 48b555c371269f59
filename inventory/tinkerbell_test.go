package inventory

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

func TestTinkerbellForm(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := Workflow{Run: "r1", State: StateFailed, Actions: []ActionRecord{
		{Name: "partition", Task: "os", Image: "partition", State: action.Success, StartedAt: began, Seconds: 1.7, Timeout: 600},
		{Name: "write", Task: "os", Image: "write", State: action.Failed, StartedAt: began, Seconds: 2, Timeout: 600, Message: "no space left"},
		{Name: "reboot", Task: "end", Image: "reboot", State: action.Stopped, Timeout: 60},
	}}
	text, err := json.Marshal(w.Tinkerbell())
	require.NoError(t, err)
	require.JSONEq(t, `{"state":"STATE_FAILED","currentAction":"","tasks":[
		{"name":"os","actions":[
			{"name":"partition","image":"partition","timeout":600,"status":"STATE_SUCCESS","startedAt":"2026-03-01T12:00:00Z","seconds":1},
			{"name":"write","image":"write","timeout":600,"status":"STATE_FAILED","startedAt":"2026-03-01T12:00:00Z","seconds":2,"message":"no space left"}]},
		{"name":"end","actions":[{"name":"reboot","image":"reboot","timeout":60,"status":"STATE_FAILED","seconds":0}]}]}`, string(text))

	w.State, w.Actions[1].State = StateRunning, action.Running
	require.Equal(t, "write", w.Tinkerbell().CurrentAction)
	require.Equal(t, "STATE_RUNNING", w.Tinkerbell().State)
}
