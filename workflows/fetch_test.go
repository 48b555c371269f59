package workflows_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestPlanFetchesContainer: the image of a container is pulled before the plan is stored, and again if it was deleted in between. The run
// ends if that never ends.
func TestPlanFetchesContainer(t *testing.T) {
	sum := strings.Repeat("c", 64)
	for deletions, want := range map[int]string{0: "", 1: "", 3: "images were deleted again and again"} {
		w := newWorld(t, nil)
		require.NoError(t, w.Store.Templates.PutTemplate(t.Context(), inventory.Template{
			Name: "probe", Source: "version: \"0.1\"\nname: probe\ntasks:\n- name: t\n  actions:\n" +
				"  - {name: a, image: \"registry.example/probe:1\", timeout: 60}\n",
		}, "test"))
		w.do.Site.ResolveContainer = func(context.Context, action.ContainerReference) (string, error) { return "sha256:" + sum, nil }
		w.do.Site.Runtime = func() (string, error) { return sum, nil }
		pulled := 0
		w.do.Site.FetchImage = func(ctx context.Context, name, address, _ string) error {
			require.Equal(t, "oci://registry.example/probe:1@sha256:"+sum, address)
			if pulled++; pulled <= deletions {
				return nil // it is stored, and deleted
			}
			return w.Store.Images.PutImage(ctx, inventory.Image{
				Name: name, File: sum, SHA256: sum, Use: inventory.UseContainer,
				Container: &inventory.ContainerImage{Reference: "registry.example/probe:1", Digest: "sha256:" + sum, Architecture: "amd64"},
			}, "test")
		}
		var got *action.Container
		w.agentFor = func(a inventory.Assignment) *action.Result {
			if a.Payload.Action.Name == "a" {
				got = a.Payload.Action.Container
			}
			return &action.Result{Key: a.Key, State: action.Success}
		}
		err := w.run(contract.ProvisionInput{Machine: machine, Template: "probe"})
		w.closed()
		if want != "" {
			require.ErrorContains(t, err, want)
			require.Nil(t, got)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, deletions+1, pulled)
		require.Equal(t, sum, got.Runtime)
		require.Contains(t, got.URL, sum)
	}
}
