package activities

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// records holds the records of operations and machines, newest first.
type records struct {
	unused
	storeGenesis
	operations []inventory.Operation
	runs       []inventory.Workflow
}

func (*records) PutOperation(context.Context, inventory.Operation) error { return nil }

func (l *records) Operations(context.Context, inventory.OperationFilter) ([]inventory.Operation, error) {
	return l.operations, nil
}

func (*records) Machines(context.Context) ([]inventory.Machine, error) { return nil, nil }

func (l *records) LatestWorkflow(context.Context, string) (inventory.Workflow, error) {
	return l.runs[0], nil
}

func (l *records) Workflows(context.Context, inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	return append([]inventory.Workflow{}, l.runs...), nil
}

// TestInstalled finds the operation's installation whatever was done with the machine since,
// and does not overwrite another run's installation.
func TestInstalled(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	run := func(name, typ, state, parent string, started time.Duration) inventory.Workflow {
		return inventory.Workflow{Run: name, Type: typ, State: state, Started: at.Add(started), Input: []byte(`{"parent":"` + parent + `"}`)}
	}
	own := run("own", "Provision", inventory.StateSuccess, "genesis/home", time.Hour)
	for name, c := range map[string]struct {
		runs []inventory.Workflow
		want string
		err  string
		back bool // the operation has taken its installation back
	}{
		"nothing was done":         {nil, "", "", false},
		"installed":                {[]inventory.Workflow{own}, "own", "", false},
		"before the operation":     {[]inventory.Workflow{run("old", "Provision", inventory.StateSuccess, "genesis/home", -time.Hour)}, "", "", false},
		"failed":                   {[]inventory.Workflow{run("bad", "Provision", inventory.StateFailed, "genesis/home", 2*time.Hour), own}, "", "", false},
		"a BMC job since":          {[]inventory.Workflow{run("job", "BMCJob", inventory.StateSuccess, "", 2*time.Hour), own}, "own", "", false},
		"an inspection since":      {[]inventory.Workflow{run("look", "Inspect", inventory.StateSuccess, "", 2*time.Hour), own}, "own", "", false},
		"someone else's since":     {[]inventory.Workflow{run("theirs", "Reprovision", inventory.StateSuccess, "", 2*time.Hour), own}, "", "theirs", false},
		"taken back":               {[]inventory.Workflow{own}, "", "", true},
		"taken back, a job since":  {[]inventory.Workflow{run("job", "BMCJob", inventory.StateSuccess, "", 2*time.Hour), own}, "", "", true},
		"theirs is not taken back": {[]inventory.Workflow{run("theirs", "Reprovision", inventory.StateSuccess, "", 2*time.Hour), own}, "", "theirs", true},
		"someone else's, no other": {[]inventory.Workflow{run("theirs", "Provision", inventory.StateSuccess, "", 2*time.Hour)}, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Config{Store: storeOf(&records{runs: c.runs, storeGenesis: newLabShelf(t)})})
			if c.back {
				_, err := a.OpenRun(t.Context(), OpenRunRequest{Machine: "ms-02-a", Parent: "genesis/home", TakeBack: true})
				require.NoError(t, err)
			}
			got, err := a.Installed(t.Context(), InstalledRequest{Machine: "ms-02-a", Parent: "genesis/home", Since: at})
			if c.err != "" {
				require.Equal(t, TypeConflict, typeOf(t, err))
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got.Run)
		})
	}
}

// A wait for a finished operation would never end, because nothing can be asked before the
// activity returns.
func TestOpenOperationThatHasEnded(t *testing.T) {
	l := &records{operations: []inventory.Operation{{Run: "r1"}}}
	a := New(Config{Store: storeOf(l)})
	run, err := a.OpenOperation(t.Context(), "migrate/platform")
	require.NoError(t, err)
	require.Equal(t, "r1", run)
	l.operations = nil
	_, err = a.OpenOperation(t.Context(), "migrate/platform")
	var app *temporal.ApplicationError
	require.ErrorAs(t, fail(err), &app)
	require.True(t, app.NonRetryable())
	require.ErrorContains(t, err, "migrate/platform")
}
