package workflows

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

// execute carries out an activity and decodes its result into result, unless result is nil.
func execute(ctx workflow.Context, o workflow.ActivityOptions, result, activity any, args ...any) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), activity, args...).Get(ctx, result)
}

// executeLocal does what execute does, but for a local activity, which adds one event to the history instead of six. If the
// workflow task is lost, Temporal runs the task's local activities again.
func executeLocal(ctx workflow.Context, result, activity any, args ...any) error {
	return workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), activity, args...).Get(ctx, result)
}

// inOrder carries out the steps one after another and returns the first error.
func inOrder(ctx workflow.Context, steps ...func(workflow.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Types of errors that the workflows create.
const (
	typeTimeout       = "Timeout"
	typeActionFailed  = "ActionFailed"
	typeInstallFailed = "InstallFailed"
	typeQuarantined   = "Quarantined" // a Decommission could not verify every step
	typeBusy          = "Busy"        // another run owns the machine
)

// newError returns an error that is not retried.
func newError(typ, format string, args ...any) error {
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf(format, args...), typ, nil)
}

// hasType reports whether err is an application error of the type.
func hasType(err error, typ string) bool {
	var a *temporal.ApplicationError
	return errors.As(err, &a) && a.Type() == typ
}

// lostMachine reports whether err means that the run may not touch its machine any more:
// another run has taken the grant, or the server was restored from a backup in which the run
// was open.
func lostMachine(err error) bool {
	return hasType(err, activities.TypeFenced) || hasType(err, activities.TypeHeld)
}

// operatorCanHelp reports whether the operator may be able to fix the error of a power operation, for example a missing key, an
// address that is not allowed, or a database that was not writable for minutes. It returns false if the run has lost its machine or
// was canceled.
func operatorCanHelp(err error) bool { return !lostMachine(err) && !temporal.IsCanceledError(err) }

// messageOf returns the message of the application error in err, without the texts that Temporal adds. If err contains no
// application error, it returns the whole text of err.
func messageOf(err error) string {
	if a, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return a.Message()
	}
	return err.Error()
}
