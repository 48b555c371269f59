package server

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/inventory"
)

// Formats of the log.
const (
	LogText = "text" // key=value
	LogJSON = "json" // one object on each line
)

// sdkKeys are the keys of Temporal's SDK, as the rest of the server calls the same things.
var sdkKeys = map[string]string{
	"RunID":        inventory.LogRun,
	"WorkflowID":   "workflow",
	"WorkflowType": "type",
	"ActivityType": "activity",
	"ActivityID":   "activity_id",
	"Attempt":      "attempt",
	"Namespace":    "namespace",
	"TaskQueue":    "task_queue",
	"WorkerID":     "worker",
	"Error":        "error",
	"err":          "error", // of the embedded server
}

// NewLog returns the log of ingot serve. An unknown format is inventory.ErrInvalid.
func NewLog(out io.Writer, format string, level slog.Level) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if name, ok := sdkKeys[a.Key]; ok && len(groups) == 0 {
			a.Key = name
		}
		return a
	}}
	switch format {
	case LogText:
		return slog.New(slog.NewTextHandler(out, o)), nil
	case LogJSON:
		return slog.New(slog.NewJSONHandler(out, o)), nil
	}
	return nil, human.WithKind(fmt.Errorf("invalid --log-format %q; must be text or json", format), inventory.ErrInvalid)
}
