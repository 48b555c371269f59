package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
)

// pending is a Temporal with one open run and its pending activities.
type pending struct {
	client.Client
	activities []*workflowpb.PendingActivityInfo
	ended      []string
	err        error // of CompleteActivityByID
}

func (p *pending) ListWorkflow(context.Context, *workflowservice.ListWorkflowExecutionsRequest) (
	*workflowservice.ListWorkflowExecutionsResponse, error,
) {
	run := &workflowpb.WorkflowExecutionInfo{Execution: &commonpb.WorkflowExecution{WorkflowId: "machine/m1", RunId: "r1"}}
	return &workflowservice.ListWorkflowExecutionsResponse{Executions: []*workflowpb.WorkflowExecutionInfo{run}}, nil
}

func (p *pending) DescribeWorkflowExecution(context.Context, string, string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	return &workflowservice.DescribeWorkflowExecutionResponse{PendingActivities: p.activities}, nil
}

func (p *pending) CompleteActivityByID(_ context.Context, _, id, run, activity string, _ any, err error) error {
	var app *temporal.ApplicationError
	if errors.As(err, &app) && !app.NonRetryable() {
		p.ended = append(p.ended, fmt.Sprintf("%s %s %s %s", id, run, activity, app.Type()))
	}
	return p.err
}

// attempt adds a pending activity, and returns how the engine names its attempt.
func (p *pending) attempt(worker string, state enumspb.PendingActivityState) Attempt {
	id := fmt.Sprint(len(p.activities) + 1)
	p.activities = append(p.activities, &workflowpb.PendingActivityInfo{
		ActivityId: id, ActivityType: &commonpb.ActivityType{Name: "Power"}, State: state, Attempt: 1, LastWorkerIdentity: worker,
	})
	return Attempt{Workflow: "machine/m1", Run: "r1", Activity: id, Number: 1, Type: "Power"}
}

func TestLostAttemptsStartAgain(t *testing.T) {
	const (
		started   = enumspb.PENDING_ACTIVITY_STATE_STARTED
		scheduled = enumspb.PENDING_ACTIVITY_STATE_SCHEDULED
		lost      = "machine/m1 r1 %s AttemptLost"
	)
	p := &pending{}
	p.attempt("killed", started)
	p.attempt("killed", scheduled)
	left := p.attempt("killed", started)
	mine := p.attempt("me", started)
	notArrived := p.attempt("me", started)
	underWay := map[Attempt]bool{left: true, mine: true}
	l := LostAttempts{
		Client: p, Identity: "me", Log: slog.New(slog.DiscardHandler),
		UnderWay: func(a Attempt) bool { return underWay[a] },
	}
	require.NoError(t, l.Pass(t.Context()))
	require.Equal(t, []string{fmt.Sprintf(lost, "1")}, p.ended, "at once, if the worker is gone and no worker has the task")

	p.activities, p.ended = p.activities[1:], nil
	delete(underWay, left)
	require.NoError(t, l.Pass(t.Context()))
	require.Equal(t, []string{fmt.Sprintf(lost, left.Activity), fmt.Sprintf(lost, notArrived.Activity)}, p.ended,
		"one of an earlier connection as soon as it has ended here; one of this connection if it does not arrive")

	// The next attempt is another one: it may be on its way.
	p.activities, p.ended = p.activities[len(p.activities)-1:], nil
	p.activities[0].Attempt = 2
	require.NoError(t, l.Pass(t.Context()))
	require.Empty(t, p.ended)

	p.err = serviceerror.NewNotFound("it has ended")
	require.NoError(t, l.Pass(t.Context()))
	require.Len(t, p.ended, 1)
	p.err = serviceerror.NewUnavailable("gone")
	require.NoError(t, l.Pass(t.Context()), "it counts as new")
	require.ErrorContains(t, l.Pass(t.Context()), `ending attempt 2 of Power of run "r1": gone`)
}
