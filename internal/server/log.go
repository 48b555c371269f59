package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	sdktemporal "go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// Formats of the log.
const (
	LogText = "text" // key=value
	LogJSON = "json" // one object on each line
)

// sdkKeys maps the log keys of Temporal's SDK to the keys that the rest of the server uses.
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
	"err":          "error", // the embedded Temporal server uses this key
}

// NewLog returns the log of ingot serve. It returns inventory.ErrInvalid for an unknown format.
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

// sdkHandler is the log handler for Temporal's SDK. It drops the attributes that are the same in every line of a server. If
// Temporal will retry an activity, it logs the activity's error as a warning.
type sdkHandler struct {
	slog.Handler
	// workflow is the WorkflowID. Handle adds it to the line, unless an attribute already names the workflow's machine.
	workflow slog.Attr
}

// WithAttrs implements [slog.Handler].
func (h sdkHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	kept := slices.DeleteFunc(slices.Clone(attrs), func(a slog.Attr) bool {
		switch a.Key {
		case "Namespace", "TaskQueue", "WorkerID":
			return true
		case "Attempt": // Attempt of a workflow: always 1, unless Temporal has restarted the workflow
			return a.Value.String() == "1"
		case "WorkflowID":
			h.workflow = a
			return true
		case inventory.LogMachine:
			if h.workflow.Value.String() == workflows.MachineID(a.Value.String()) {
				h.workflow = slog.Attr{}
			}
		}
		return false
	})
	h.Handler = h.Handler.WithAttrs(kept)
	return h
}

// WithGroup implements [slog.Handler].
func (h sdkHandler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}

// Handle implements [slog.Handler].
func (h sdkHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.workflow.Key != "" {
		r = r.Clone()
		r.AddAttrs(h.workflow)
	}
	if r.Message == "Activity error." && r.Level == slog.LevelError && isTriedAgain(r) {
		r.Level = slog.LevelWarn
		if !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// isTriedAgain reports whether Temporal may retry the activity whose error is in r.
func isTriedAgain(r slog.Record) bool {
	again := true
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		var final *sdktemporal.ApplicationError
		again = !ok || !errors.As(err, &final) || !final.NonRetryable()
		return again
	})
	return again
}
