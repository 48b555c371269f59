package server

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

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
