package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// maxSignal limits the message in a signal, in bytes. A longer message is cut.
const maxSignal = 2 << 10

// signalWait limits the time of a request that sends an event, or of a write that marks events as sent.
const signalWait = 10 * time.Second

// signal sends the event e to the run e.Run, which has the workflow id id. dc encodes the payload.
func signal(ctx context.Context, tc client.Client, dc converter.DataConverter, namespace, id string, e inventory.Event) error {
	if !strings.HasPrefix(id, workflows.MachineID("")) {
		return nil // the run is a BMC job, which receives no signals
	}
	name, payload, err := signalOf(e)
	if err != nil {
		return serviceerror.NewInvalidArgument(err.Error())
	}
	input, err := dc.ToPayloads(payload)
	if err != nil {
		return serviceerror.NewInvalidArgument(err.Error())
	}

	ctx, cancel := context.WithTimeout(ctx, signalWait)
	defer cancel()
	_, err = tc.WorkflowService().SignalWorkflowExecution(ctx, &workflowservice.SignalWorkflowExecutionRequest{
		Namespace:         namespace,
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: e.Run},
		SignalName:        name,
		Input:             input,
		Identity:          "ingot-pump",
		RequestId:         requestID(e),
	})

	return err
}

// requestID returns the RequestId of the signal for e. It is the same each time e is sent.
func requestID(e inventory.Event) string {
	if e.Kind == inventory.EventActionDone && e.Key != "" {
		return "report-" + e.Key
	}
	return "event-" + strconv.FormatInt(e.Seq, 10)
}

// attemptDetail is the Detail of the events agent-idle and agent-lost.
type attemptDetail struct {
	Key *action.Key `json:"key,omitempty"`
}

// signalOf returns the name and payload of e's signal.
func signalOf(e inventory.Event) (string, any, error) {
	if e.Kind == inventory.EventActionDone {
		var r action.Result
		if err := json.Unmarshal(e.Detail, &r); err != nil {
			return "", nil, fmt.Errorf("reading the result in event %d: %w", e.Seq, err)
		}
		return workflows.SignalActionCompleted, workflows.ActionCompleted{
			Key: r.Key, State: r.State, ExitCode: r.ExitCode, Message: plaintext.Head(r.Message, maxSignal),
		}, nil
	}

	out := workflows.Event{Seq: e.Seq, Kind: e.Kind, Epoch: e.Epoch, Boot: e.Boot}
	switch e.Kind {
	case inventory.EventAgentIdle, inventory.EventAgentLost:
		var d attemptDetail
		if len(e.Detail) > 0 {
			if err := json.Unmarshal(e.Detail, &d); err != nil {
				return "", nil, fmt.Errorf("reading the attempt in event %d: %w", e.Seq, err)
			}
		}
		out.Key = d.Key
	case inventory.EventInstalled, inventory.EventInstallFailed:
		out.Message = plaintext.Head(e.Message, maxSignal)
	}

	return workflows.SignalEvent, out, nil
}
