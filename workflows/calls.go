package workflows

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

// execute carries out an activity and decodes its result, nil for none.
func execute(ctx workflow.Context, o workflow.ActivityOptions, result, activity any, args ...any) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), activity, args...).Get(ctx, result)
}

// executeLocal is execute for a local activity, which is one event instead of
// six. A task that is lost is carried out again with its local activities.
func executeLocal(ctx workflow.Context, result, activity any, args ...any) error {
	return workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), activity, args...).Get(ctx, result)
}

// inOrder carries out steps one after another until one fails.
func inOrder(ctx workflow.Context, steps ...func(workflow.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Types of errors that the workflows make themselves.
const (
	typeTimeout       = "Timeout"
	typeActionFailed  = "ActionFailed"
	typeInstallFailed = "InstallFailed"
	typeQuarantined   = "Quarantined" // of a Decommission that could not verify all it did
	typeBusy          = "Busy"        // another run has the machine
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

// lostMachine reports whether err means that the run may do nothing to its machine
// any more: another run has taken it, or the server was restored from a backup in
// which the run was open.
func lostMachine(err error) bool {
	return hasType(err, activities.TypeFenced) || hasType(err, activities.TypeHeld)
}

// operatorCanHelp tells errors of a power operation that the operator can do
// something about (a missing key, an address that is not allowed, a database that
// could not be written for minutes) from those that end the run.
func operatorCanHelp(err error) bool { return !lostMachine(err) && !temporal.IsCanceledError(err) }

// messageOf returns the innermost message of an error, for the operator.
func messageOf(err error) string {
	var a *temporal.ApplicationError
	if errors.As(err, &a) {
		return a.Message()
	}
	return err.Error()
}
