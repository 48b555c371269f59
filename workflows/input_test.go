package workflows_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// startRaw runs a registered workflow with inputs as "temporal workflow start
// --input" gives them, and returns how it ended and which activities it asked for.
func startRaw(t *testing.T, typ, id string, inputs ...string) (did []string, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(slog.New(slog.DiscardHandler))
	env := workflows.NewEnvironment(&suite, &refusing{did: &did})
	workflows.Register(env)
	env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: id})
	require.NoError(t, env.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes()))
	env.RegisterActivity(activities.New(activities.Config{}))
	args := make([]any, len(inputs))
	for i, in := range inputs {
		args[i] = json.RawMessage(in)
	}
	env.ExecuteWorkflow(typ, args...)
	require.True(t, env.IsWorkflowCompleted())
	return did, env.GetWorkflowError()
}

// refusing is a worker on which every activity fails.
type refusing struct {
	interceptor.WorkerInterceptorBase
	did *[]string
}

func (r *refusing) InterceptActivity(
	_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return &refused{interceptor.ActivityInboundInterceptorBase{Next: next}, r.did}
}

type refused struct {
	interceptor.ActivityInboundInterceptorBase
	did *[]string
}

func (r *refused) ExecuteActivity(ctx context.Context, _ *interceptor.ExecuteActivityInput) (any, error) {
	*r.did = append(*r.did, activity.GetInfo(ctx).ActivityType.Name)
	return nil, temporal.NewNonRetryableApplicationError("refused", "test", nil)
}

// TestInputsAreReadStrictly: a misspelled key would otherwise be replaced by a default,
// without an error.
func TestInputsAreReadStrictly(t *testing.T) {
	registered := map[string]bool{}
	workflows.Register(registry(func(name string) { registered[name] = true }))
	for name, c := range map[string]struct{ typ, id, in, want string }{
		"image":          {inventory.TypeProvision, "machine/n1", `{"machine":"n1","imge":"debian-13"}`, `unknown key "imge": did you mean "image"?`},
		"template":       {inventory.TypeReprovision, "machine/n1", `{"machine":"n1","templte":"x"}`, `unknown key "templte": did you mean "template"?`},
		"nested":         {inventory.TypeProvision, "machine/n1", `{"machine":"n1","retries":{"cuont":2}}`, `unknown key "cuont": did you mean "count"?`},
		"wipe":           {inventory.TypeDecommission, "machine/n1", `{"machine":"n1","wip":"metadata"}`, `unknown key "wip": did you mean "wipe"?`},
		"inspect":        {inventory.TypeInspect, "machine/n1", `{"machine":"n1","image":"x"}`, `unknown key "image"`},
		"a task":         {inventory.TypeBMCJob, "bmc/n1/j", `{"machine":"n1","job":"j","tasks":[{"powerAction":"on"},{"powerActon":"off"}]}`, `unknown key "powerActon": did you mean "powerAction"?`},
		"a boot device":  {inventory.TypeBMCJob, "bmc/n1/j", `{"machine":"n1","job":"j","tasks":[{"bootDevice":{"device":"pxe","persistnt":true}}]}`, `unknown key "persistnt": did you mean "persistent"?`},
		"recover":        {inventory.TypeRecover, "recover/r", `{"name":"r","machine":["n1"]}`, `unknown key "machine": did you mean "machines"?`},
		"migrate":        {inventory.TypeMigrate, "migrate/m", `{"name":"m","targt":"nas"}`, `unknown key "targt": did you mean "target"?`},
		"together":       {inventory.TypeTogether, "together/p", `{"name":"p","hardwareMaps":{}}`, `unknown key "hardwareMaps": did you mean "hardwareMap"?`},
		"genesis":        {inventory.TypeGenesis, "genesis/g", `{"name":"g","resum":true}`, `unknown key "resum": did you mean "resume"?`},
		"no JSON object": {inventory.TypeInspect, "machine/n1", `"n1"`, "reading the input"},
	} {
		delete(registered, c.typ)
		t.Run(name, func(t *testing.T) {
			did, err := startRaw(t, c.typ, c.id, c.in)
			require.ErrorContains(t, err, c.want)
			var app *temporal.ApplicationError
			require.ErrorAs(t, err, &app)
			require.True(t, app.NonRetryable())
			require.Equal(t, activities.TypeInvalid, app.Type())
			require.Empty(t, did)
		})
	}
	require.Empty(t, slices.Collect(maps.Keys(registered)), "types without a case")

	_, err := startRaw(t, inventory.TypeProvision, "machine/n1", `{"machine":"n1"}`, `{"image":"debian-13"}`)
	require.ErrorContains(t, err, "takes exactly one input", "the second would be ignored")

	// Correct input is read, including nested keys.
	did, err := startRaw(
		t,
		inventory.TypeProvision,
		"machine/n1",
		`{"machine":"n1","template":"t","image":"i","hardwareMap":{"any":"key"},"retries":{"count":1,"from":"start"},"policy":"pause","resume":"r","parent":"p"}`,
	)
	require.NotContains(t, err.Error(), "unknown key")
	require.NotEmpty(t, did)
}

// registry records the registered workflows.
type registry func(name string)

func (f registry) RegisterWorkflowWithOptions(_ any, o workflow.RegisterOptions) { f(o.Name) }

// TestMisspeltRetriesAreRefused: any value but "start" meant the failed step.
func TestMisspeltRetriesAreRefused(t *testing.T) {
	w := newWorld(t, nil)
	require.ErrorContains(
		t,
		w.run(contract.ProvisionInput{Machine: machine, Retries: contract.Retries{Count: 1, From: "sart"}}),
		`retries.from: invalid value "sart"`,
	)
	require.Zero(t, w.cycles)
}
