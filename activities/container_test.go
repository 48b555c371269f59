package activities

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const containerTemplate = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n" +
	"  - {name: a, image: \"registry.example:5000/tools/probe:v1\", timeout: 60, environment: {DISK: /dev/sda, A: \"{{ .nonce }}\"}}\n"

var runtimeDigest = strings.Repeat("e", 64)

// storedRuntime is the Site.Runtime of a server that has a container runtime.
func storedRuntime() (string, error) { return runtimeDigest, nil }

func (s *shelf) MachineAgent(context.Context, string) (inventory.Agent, error) {
	return inventory.Agent{Facts: action.Facts{Memory: 2 << 30}}, nil
}

func (s *shelf) Plan(context.Context, string) (inventory.Plan, error) {
	if !s.stored {
		return inventory.Plan{}, inventory.ErrNotFound
	}
	return *s.plan, nil
}

// A tag means what the registry says when the run is planned. The image is pulled once; the plan names its digest.
func TestS18ContainersArePlannedByDigest(t *testing.T) {
	digests := map[string]string{"v1": "sha256:" + strings.Repeat("1", 64)}
	var down bool
	s := &shelf{template: containerTemplate, images: []inventory.Image{{Name: "other", File: "o", SHA256: declaredDigest}}}
	pulled := 0
	a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
		ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }, Runtime: storedRuntime,
		ResolveContainer: func(_ context.Context, r action.ContainerReference) (string, error) {
			if down {
				return "", fmt.Errorf("no route to host: %w", inventory.ErrUnreachable)
			}
			return digests[r.Tag], nil
		},
		FetchImage: func(_ context.Context, name, address, _ string) error {
			pulled++
			ref, digest, _ := strings.Cut(strings.TrimPrefix(address, "oci://"), "@")
			sum := strings.Repeat(digest[len(digest)-1:], 64)
			s.images = append(s.images, inventory.Image{
				Name: name, File: sum, SHA256: sum, DiskSize: 1 << 20, Use: inventory.UseContainer,
				Created: time.Unix(int64(pulled), 0), Container: &inventory.ContainerImage{Reference: ref, Digest: digest},
			})
			return nil
		},
	}})
	plan := func() (Planned, error) {
		q := PlanRequest{Machine: "m1", Run: "r1", Template: "t"}
		p, err := a.Plan(t.Context(), q)
		if err == nil && len(p.Fetch) > 0 {
			require.NoError(t, a.FetchImages(t.Context(), q))
			p, err = a.Plan(t.Context(), q)
		}
		return p, err
	}

	p, err := plan()
	require.NoError(t, err)
	require.Empty(t, p.Fetch)
	require.True(t, p.Actions[0].Writes, "the environment names the disk")
	require.False(t, p.NoSystem, "it may have installed one")
	c := s.plan.Actions[0].Container
	require.Equal(t, digests["v1"], c.Digest)
	require.Equal(t, imagesAt+"/"+strings.Repeat("1", 64)+"/"+s.images[1].Name, c.URL)
	require.Contains(t, s.plan.Images(0), inventory.PlannedImage{Run: "r1", Name: s.images[1].Name, SHA256: strings.Repeat("1", 64)})

	_, err = plan()
	require.NoError(t, err)
	require.Equal(t, 1, pulled)

	digests["v1"] = "sha256:" + strings.Repeat("2", 64)
	_, err = plan()
	require.NoError(t, err)
	require.Equal(t, 2, pulled, "the tag was moved")
	require.Equal(t, digests["v1"], s.plan.Actions[0].Container.Digest)

	first := digests["v1"]
	digests["v1"] = "sha256:" + strings.Repeat("3", 64)
	s.stored = true
	_, err = plan()
	require.NoError(t, err)
	require.Equal(t, first, s.plan.Actions[0].Container.Digest, "the plan of this run is stored already")
	digests["v1"], s.stored = first, false

	down = true
	p, err = plan()
	require.NoError(t, err)
	require.Equal(t, digests["v1"], s.plan.Actions[0].Container.Digest, "the image that was stored last for the tag")
	require.Contains(t, strings.Join(p.Warnings, ""), "the registry does not answer")

	s.template = strings.Replace(containerTemplate, ":v1", ":v2", 1)
	_, err = plan()
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	s.template = strings.Replace(containerTemplate, ":v1", "@sha256:"+strings.Repeat("1", 64), 1)
	_, err = plan()
	require.NoError(t, err, "an image by digest needs no registry")
}

// The digest of an index means the same image for ever. It is kept with the image, also if this server had the image by its tag before, so
// later plans need no registry.
func TestS18AnIndexIsAskedForOnce(t *testing.T) {
	manifest, index, sum := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64), strings.Repeat("3", 64)
	stored := func(name, reference string) inventory.Image {
		return inventory.Image{
			Name: name, File: sum, SHA256: sum, DiskSize: 1 << 20, Use: inventory.UseContainer,
			Container: &inventory.ContainerImage{Reference: reference, Digest: manifest},
		}
	}
	for _, s := range []*shelf{
		{images: []inventory.Image{{Name: "other", File: "o", SHA256: declaredDigest}}},
		{images: []inventory.Image{stored("by-tag", "registry.example:5000/tools/probe:v1")}},
	} {
		s.template = strings.Replace(containerTemplate, ":v1", "@"+index, 1)
		asked, pulled := 0, 0
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }, Runtime: storedRuntime,
			ResolveContainer: func(context.Context, action.ContainerReference) (string, error) {
				asked++
				return manifest, nil
			},
			FetchImage: func(_ context.Context, name, address, _ string) error {
				pulled++
				s.images = append(s.images, stored(name, strings.TrimPrefix(address, action.ContainerScheme)))
				return nil
			},
		}})
		q := PlanRequest{Machine: "m1", Run: "r1", Template: "t"}
		p, err := a.Plan(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, p.Fetch, 1)
		require.NoError(t, a.FetchImages(t.Context(), q))
		require.Equal(t, "registry.example:5000/tools/probe@"+index, s.images[1].Container.Reference)

		a.Site.ResolveContainer = func(context.Context, action.ContainerReference) (string, error) {
			return "", fmt.Errorf("no route to host: %w", inventory.ErrUnreachable)
		}
		p, err = a.Plan(t.Context(), q)
		require.NoError(t, err)
		require.Empty(t, p.Fetch)
		require.NotContains(t, strings.Join(p.Warnings, ""), "registry")
		require.Equal(t, manifest, s.plan.Actions[0].Container.Digest)
		require.Equal(t, []int{2, 1}, []int{asked, pulled})
	}
}

// A registry that does not answer is asked once per plan, whatever its images are: each question takes until the time-out.
func TestRegistriesAreAskedOnce(t *testing.T) {
	step := func(image string) string {
		return "  - {name: " + image[len(image)-2:] + ", image: \"" + image + "\"}\n"
	}
	s := &shelf{template: "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n" + step("down.example/a:v1") +
		step("Down.example/b:v2") + step("up.example/c:v3") + step("down.example/d:v4")}
	for i, ref := range []string{"down.example/a:v1", "Down.example/b:v2", "up.example/c:v3", "down.example/d:v4"} {
		sum := strings.Repeat(fmt.Sprint(i+1), 64)
		s.images = append(s.images, inventory.Image{
			Name: "image" + fmt.Sprint(i), File: sum, SHA256: sum, DiskSize: 1 << 20, Use: inventory.UseContainer, Created: time.Unix(1, 0),
			Container: &inventory.ContainerImage{Reference: ref, Digest: "sha256:" + sum},
		})
	}
	var asked []string
	a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
		ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }, Runtime: storedRuntime,
		ResolveContainer: func(_ context.Context, r action.ContainerReference) (string, error) {
			asked = append(asked, r.String())
			if r.Registry == "up.example" {
				return "sha256:" + strings.Repeat("3", 64), nil
			}
			return "", fmt.Errorf("no route to host: %w", inventory.ErrUnreachable)
		},
	}})
	p, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
	require.NoError(t, err)
	require.Equal(t, []string{"down.example/a:v1", "up.example/c:v3"}, asked)
	require.Len(t, p.Warnings, 3)
	for i, x := range s.plan.Actions[:4] {
		require.Equal(t, "sha256:"+strings.Repeat(fmt.Sprint(i+1), 64), x.Container.Digest)
	}

	asked, s.images = nil, s.images[:3]
	_, err = a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	require.ErrorContains(t, err, "down.example/d:v4")
	require.ErrorContains(t, err, "no route to host")
	require.Len(t, asked, 2)
}

// The order for a container is complete: archive, manifest and runtime are named by digest.
func TestS8OrderOfAContainer(t *testing.T) {
	a := &assignments{&shared{Config: Config{Site: Site{Runtime: storedRuntime}}}}
	x := action.Action{Name: "a", Image: "probe", Container: &action.Container{
		URL: imagesAt + "/" + sumA + "/probe", SHA256: sumA, Digest: "sha256:" + sumB,
	}}
	got, err := a.withRuntime(x, "/dev/sda")
	require.NoError(t, err)
	require.Equal(t, runtimeDigest, got.Container.Runtime)
	require.Empty(t, x.Container.Runtime, "the plan stays as it is")

	for name, change := range map[string]func(c *action.Container){
		"no digest":         func(c *action.Container) { c.Digest = "" },
		"no archive":        func(c *action.Container) { c.SHA256 = "" },
		"no longer allowed": func(c *action.Container) { c.Privileged = true },
	} {
		c := *x.Container
		change(&c)
		_, err := a.withRuntime(action.Action{Container: &c}, "/dev/sda")
		require.ErrorIs(t, err, inventory.ErrInvalid, name)
	}
}

// Without a container runtime, a plan with a container is refused before the machine is switched on and before a registry is asked.
func TestContainersNeedTheRuntime(t *testing.T) {
	gone := fmt.Errorf("opening the container runtime: %w", inventory.ErrInvalid)
	for want, runtime := range map[string]func() (string, error){
		"this server has no container runtime": nil,
		"opening the container runtime":        func() (string, error) { return "", gone },
	} {
		s := &shelf{template: containerTemplate}
		a := New(Config{Store: storeOf(s), Clocks: Clocks{Now: time.Now}, Site: Site{
			ClaimKey: make([]byte, 32), ImageURL: func() string { return imagesAt }, Runtime: runtime,
			ResolveContainer: func(context.Context, action.ContainerReference) (string, error) {
				t.Error("a registry was asked")
				return "", inventory.ErrUnreachable
			},
		}})
		_, err := a.Plan(t.Context(), PlanRequest{Machine: "m1", Run: "r1", Template: "t"})
		require.ErrorIs(t, err, inventory.ErrInvalid)
		require.ErrorContains(t, err, want)
		require.Nil(t, s.plan)

		// A retry needs it only for the actions that are repeated.
		container := action.Action{Image: "probe", Container: &action.Container{URL: imagesAt + "/probe", SHA256: sumA, Digest: "sha256:" + sumB}}
		retried, y := newYard()
		retried.Site.Runtime = runtime
		y.plan = inventory.Plan{Run: "r1", Actions: []action.Action{container, {Image: action.Noop}}}
		for from, workflows := 0, retried.Workflows; from < 2; from++ {
			retried.Workflows = failedAt{workflows, from}
			var out Planned
			_, err = retried.resume(t.Context(), PlanRequest{Run: "r2", Machine: "m1", Resume: "r1"}, &out)
			require.Equal(t, from == 0, err != nil && strings.Contains(err.Error(), want), "%d: %v", from, err)
		}
		_, err = (&assignments{retried.assignments.shared}).withRuntime(container, "")
		require.ErrorContains(t, err, want)
	}
}

// S67: a retry from the failed step repeats the containers that have filled a folder which is needed again: it was in the agent's memory.
func TestRetryFillsSharedFolders(t *testing.T) {
	a, y := newYard()
	a.Site.Runtime = storedRuntime
	step := func(volumes ...string) action.Action {
		return action.Action{Image: "probe", Volumes: volumes, Container: &action.Container{}}
	}
	other := step("other:/o")
	workflows := a.Workflows
	for name, c := range map[string]struct {
		actions      []action.Action
		failed, from int
	}{
		"nothing is shared":      {[]action.Action{other, step("data:/d"), step(), step("/x:/x")}, 3, 3},
		"with the failed action": {[]action.Action{other, step("data:/d"), step(), step("data:/e")}, 3, 1},
		"with a later action":    {[]action.Action{other, step("data:/d"), step(), step("/x:/x"), step("data:/e")}, 3, 1},
		"in turn":                {[]action.Action{other, step("a:/a"), step("a:/a", "b:/b"), step("b:/b")}, 3, 1},
		"in turn, by an action between": {
			[]action.Action{other, step("a:/a"), step("b:/b"), step("a:/a"), step("b:/b")}, 4, 1,
		},
	} {
		y.plan = inventory.Plan{Run: "r1", Actions: c.actions}
		a.Workflows = failedAt{workflows, c.failed}
		var out Planned
		_, err := a.resume(t.Context(), PlanRequest{Run: "r2", Machine: "m1", Resume: "r1"}, &out)
		require.NoError(t, err, name)
		require.Equal(t, c.from, out.From, name)
	}
}

// failedAt reports a run that has failed at an action.
type failedAt struct {
	storeWorkflows
	action int
}

func (f failedAt) Workflow(context.Context, string) (inventory.Workflow, error) {
	w := inventory.Workflow{Machine: "m1", State: inventory.StateFailed}
	for range f.action {
		w.Actions = append(w.Actions, inventory.ActionRecord{State: action.Success})
	}
	return w, nil
}

func (failedAt) Resumable(context.Context, string) error { return nil }
