package server

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdklog "go.temporal.io/sdk/log"
	sdktemporal "go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// TestLogFormats: the keys of a run are the same, whether Ingot or Temporal's SDK has written the line.
func TestLogFormats(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLog(&out, LogJSON, slog.LevelInfo)
	require.NoError(t, err)
	o := inventory.Owner{Machine: "node-1", Run: "r1", Epoch: 3}
	log.With(o.LogKeys(2)...).Info("ours")
	log.Info("the SDK's", "RunID", "r1", "WorkflowID", "machine/node-1", "Attempt", 1)
	log.Debug("left out")

	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	require.Len(t, lines, 2)
	var ours, sdk map[string]any
	require.NoError(t, json.Unmarshal(lines[0], &ours))
	require.NoError(t, json.Unmarshal(lines[1], &sdk))
	require.Subset(t, ours, map[string]any{"machine": "node-1", "run": "r1", "epoch": 3.0, "boot": 2.0})
	require.Subset(t, sdk, map[string]any{"run": "r1", "workflow": "machine/node-1", "attempt": 1.0})

	out.Reset()
	log, err = NewLog(&out, LogText, slog.LevelInfo)
	require.NoError(t, err)
	log.With(o.LogKeys(0)...).Info("ours")
	require.Contains(t, out.String(), "machine=node-1 run=r1 epoch=3\n")
	_, err = NewLog(&out, "xml", slog.LevelInfo)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}

// TestLogOfTheSDK: what each line would repeat is left out, and an activity that is tried again is a warning.
func TestLogOfTheSDK(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLog(&out, LogText, slog.LevelInfo)
	require.NoError(t, err)
	sdk := sdklog.NewStructuredLogger(slog.New(sdkHandler{Handler: log.Handler()}))
	worker := sdklog.With(sdk, "Namespace", "default", "TaskQueue", "ingot", "WorkerID", "ingot serve X on vm since today, process 1")
	silent := sdktemporal.NewApplicationError("BMC 192.0.2.3 does not answer", activities.TypeUnreachable)
	refused := sdktemporal.NewNonRetryableApplicationError("BMC 192.0.2.3 refused the password", activities.TypeRefused, nil)
	worker.Error("Activity error.", "ActivityType", "Power", "Attempt", int32(1), "Error", silent)
	worker.Error("Activity error.", "ActivityType", "Power", "Attempt", int32(1), "Error", refused)
	worker.Error("Workflow panic", "Error", silent)
	sdklog.With(worker, "WorkflowID", "machine/node-1", "Attempt", int32(1)).Info("a phase begins")
	sdklog.With(worker, "Attempt", int32(2)).Info("a phase begins")
	run := sdklog.With(worker, "WorkflowID", "machine/node-1", "RunID", "r1")
	sdklog.With(run, "machine", "node-1", "epoch", 3).Info("a phase begins")
	sdklog.With(run, "machine", "node-2").Info("a phase begins")

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 7)
	for i, want := range []string{
		`level=WARN msg="Activity error." activity=Power attempt=1 error="BMC 192.0.2.3 does not answer (type: Unreachable, retryable: true)"`,
		`level=ERROR msg="Activity error." activity=Power attempt=1 error="BMC 192.0.2.3 refused the password (type: Refused, retryable: false)"`,
		`level=ERROR msg="Workflow panic" error="BMC 192.0.2.3 does not answer (type: Unreachable, retryable: true)"`,
		`level=INFO msg="a phase begins" workflow=machine/node-1`,
		`level=INFO msg="a phase begins" attempt=2`,
		`level=INFO msg="a phase begins" run=r1 machine=node-1 epoch=3`,
		`level=INFO msg="a phase begins" run=r1 machine=node-2 workflow=machine/node-1`,
	} {
		_, line, _ := strings.Cut(lines[i], " ")
		require.Equal(t, want, line)
	}

	out.Reset()
	log, err = NewLog(&out, LogText, slog.LevelError)
	require.NoError(t, err)
	slog.New(sdkHandler{Handler: log.Handler()}).Error("Activity error.", "Error", silent)
	require.Empty(t, out.String(), "a warning is not logged at this level")
}
