package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestRecover wipes and installs three machines at the same time, one with a dead BMC: two
// are installed again, and the recovery waits for the operator of the third. Another recovery is
// started with Temporal's own command.
func TestRecover(t *testing.T) {
	runInTurn(t, 350, 1)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	names := []string{"one", "two", "three"}
	machines := map[string]*lab.Machine{}
	g, gctx := errgroup.WithContext(ctx)
	for _, name := range names {
		machines[name], err = s.Add(
			ctx,
			lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")},
			func(doc map[string]any) {
				doc["image"], doc["labels"] = "sim", map[string]string{"rack": "a1"}
			},
		)
		require.NoError(t, err)
		g.Go(func() error {
			if _, err := s.Provision(gctx, contract.ProvisionInput{Machine: name}); err != nil {
				return err
			}
			_, err := s.Follow(gctx, name, func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
			return err
		})
	}
	require.NoError(t, g.Wait())

	plug, err := machines["two"].BMC().Unreachable(ctx)
	require.NoError(t, err)
	_, err = s.CLI(ctx, "recover", "start", "flood", "--machine", "one,two,four")
	require.ErrorContains(t, err, `there is no machine "four"`)
	out := s.must(ctx, t, "recover", "start", "flood", "--selector", "rack=a1", "--concurrency", "3", "--yes")
	require.Contains(t, out, "recover/flood has begun")
	began := time.Now()
	// The server is killed while the recovery waits for the last machine.
	s.operationIs(ctx, t, "recover.flood", func(o inventory.Operation) bool {
		n := states(o)
		return n["one"] == inventory.StepDone && n["three"] == inventory.StepDone
	})
	s.Kill()
	require.NoError(t, s.Start(ctx))
	o := s.operationIs(ctx, t, "recover.flood", func(o inventory.Operation) bool { return o.Step == inventory.PhaseWaiting })
	t.Logf("three machines, one with a dead BMC: %s in %.0f s", o.Message, time.Since(began).Seconds())
	require.Equal(t, inventory.StateRunning, o.State, "it waits, and has not failed")
	want := map[string]string{"one": inventory.StepDone, "two": inventory.StepWaiting, "three": inventory.StepDone}
	require.Equal(t, want, states(o))
	require.Equal(t, "2 of 3 machines installed, 1 waiting for an operator", o.Message)
	for name, n := range map[string]int{"one": 2, "two": 1, "three": 2} {
		require.Equal(t, n, machines[name].PowerOns(), name)
	}

	status := s.must(ctx, t, "recover", "status", "flood")
	require.Contains(t, status, "two waits for the operator")
	t.Log(status)

	// The page shows the same in the operation, and the question in the machine's panel.
	s.walkPage(
		ctx,
		t,
		see(`[data-operation="recover/flood"]`),
		click(`[data-operation="recover/flood"] *`),
		see(`[data-operation-panel="recover/flood"]`),
		see(`[data-operation-step="one"][data-step-state="done"]`),
		see(`[data-operation-step="three"][data-step-state="done"]`),
		see(
			`[data-operation-step="two"][data-step-state="waiting"]`,
		),
		click(`[data-operation-step="two"] a`),
		see(`[data-panel="two"] [data-question]`),
	)
	var views struct {
		Items []struct {
			Name     string
			Workflow inventory.Workflow
		}
	}
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines", nil, &views))
	for _, v := range views.Items {
		require.Equal(t, inventory.TypeReprovision, v.Workflow.Type)
		require.Equal(t, v.Name == "two", v.Workflow.Question != nil, v.Name)
		require.Equal(t, "wipe", v.Workflow.Actions[0].Name)
	}

	// The operator answers late; the machine with the dead BMC continues after the answer, and the
	// recovery continues with it.
	require.NoError(t, plug())
	s.must(ctx, t, "workflow", "decide", "two", "--choice", "retry")
	s.ended(ctx, t, "two", inventory.StateSuccess)
	o = s.operationEnds(ctx, t, "recover.flood")
	require.Equal(t, inventory.StateSuccess, o.State)
	require.Equal(t, "3 of 3 machines installed", o.Message)
	for _, row := range o.Steps {
		require.Equal(t, row.Machine == "two", row.Waited > 0, row.Machine)
	}
	// The result of the workflow, for clients of Temporal.
	r := s.recovered(ctx, t, "flood")
	require.Equal(t, inventory.StateSuccess, r.State)
	var outcomes []string
	for _, m := range r.Machines {
		outcomes = append(outcomes, m.Machine+" "+m.Outcome)
	}
	require.ElementsMatch(t, []string{"one installed", "three installed", "two installed"}, outcomes)
	for _, name := range names {
		s.closed(ctx, t, name)
	}

	// With Temporal's own command, and one machine at a time.
	input := `{"name":"again","machines":["one","three"],"order":[["three"]],"concurrency":1}`
	_, err = s.TemporalCLI(ctx, "workflow", "start", "--type", inventory.TypeRecover, "--task-queue",
		workflows.TaskQueue, "--workflow-id", contract.RecoverID("again"), "--input", input)
	require.NoError(t, err)
	o = s.operationEnds(ctx, t, "recover.again")
	require.Equal(t, inventory.StateSuccess, o.State)
	require.Equal(t, map[string]string{"one": inventory.StepDone, "three": inventory.StepDone}, states(o))
	require.False(t, o.Steps[1].Since.Before(o.Steps[0].Ended), "one at a time, and three first")
	require.Equal(t, "three", o.Steps[0].Machine)
}

// operationEnds follows an operation until it has ended.
func (s *Site) operationEnds(ctx context.Context, t *testing.T, id string) inventory.Operation {
	t.Helper()
	return s.operationIs(ctx, t, id, func(o inventory.Operation) bool { return inventory.Final(o.State) })
}

// operationIs follows an operation until is returns true.
func (s *Site) operationIs(ctx context.Context, t *testing.T, id string, is func(o inventory.Operation) bool) inventory.Operation {
	t.Helper()
	var o inventory.Operation
	require.Eventually(t, func() bool {
		o = inventory.Operation{}
		err := s.REST(ctx, http.MethodGet, "/v1/operations/"+id, nil, &o)
		return err == nil && is(o)
	}, 14*time.Minute, 250*time.Millisecond, id)
	return o
}

// states returns the state of each machine of an operation.
func states(o inventory.Operation) map[string]string {
	all := map[string]string{}
	for _, step := range o.Steps {
		all[step.Machine] = step.State
	}
	return all
}

// recovered is the result of a recovery in Temporal.
func (s *Site) recovered(ctx context.Context, t *testing.T, name string) workflows.Recovered {
	t.Helper()
	out, err := s.TemporalCLI(ctx, "workflow", "result", "--workflow-id", contract.RecoverID(name), "-o", "json")
	require.NoError(t, err)
	var doc struct{ Result workflows.Recovered }
	require.NoError(t, json.NewDecoder(strings.NewReader(out)).Decode(&doc))
	return doc.Result
}
