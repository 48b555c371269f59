package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// renderTemplate renders the template for the machine. It returns with it the images of the inventory.
func (a *plans) renderTemplate(ctx context.Context, q PlanRequest, m inventory.Machine, out Planned) (template.Rendered,
	[]inventory.Image, error,
) {
	t, err := a.template(ctx, out.Template)
	if err != nil {
		return template.Rendered{}, nil, fmt.Errorf("template %q: %w", out.Template, err)
	}

	d := template.Data{
		Machine: m, HardwareMap: q.HardwareMap, RequireDigest: a.Site.RequireDigest, UploadHosts: a.Site.UploadHosts,
		PrivilegedContainers: a.Site.PrivilegedContainers,
	}
	if a.Site.ImageURL != nil {
		d.ImagesURL = a.Site.ImageURL()
	}
	if q.Together {
		if d.Others, err = a.otherMachines(ctx, m, q.HardwareMap); err != nil {
			return template.Rendered{}, nil, err
		}
	}

	if out.Image != "" {
		img, err := a.Images.Image(ctx, out.Image)
		if err != nil {
			return template.Rendered{}, nil, fmt.Errorf("image %q: %w (ingot image list shows the stored images)", out.Image, err)
		}
		d.Image, d.ImageURL = &img, a.Site.URLOf(img)
	}

	images, err := a.Images.Images(ctx)
	if err != nil {
		return template.Rendered{}, nil, err
	}
	d.Images = inventory.ImagesByURL(images, a.Site.URLOf)

	r, err := template.Render(ctx, t.Name, t.Source, d)
	if err != nil || len(r.Containers) == 0 {
		return r, images, err
	}
	if _, err := a.Site.containerRuntime(); err != nil {
		return r, images, err
	}
	agent, err := a.Agents.MachineAgent(ctx, m.Name)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return r, images, err
	}
	planned, err := a.Plans.Plan(ctx, q.Run)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return r, images, err
	}
	var warnings []string
	d.Memory = agent.Facts.Memory
	d.Containers, warnings, err = a.resolveContainers(ctx, r.Containers, planned, images)
	if err != nil {
		return r, images, err
	}
	r, err = template.Render(ctx, t.Name, t.Source, d)
	r.Warnings = append(r.Warnings, warnings...)
	return r, images, err
}

// otherMachines returns the machines that the hardware map names besides m.
func (a *shared) otherMachines(ctx context.Context, m inventory.Machine, hardwareMap map[string]string) ([]inventory.Machine, error) {
	all, err := a.Machines.Machines(ctx)
	if err != nil {
		return nil, err
	}
	named, err := inventory.MachinesOfMap(all, hardwareMap)
	return slices.DeleteFunc(named, func(o inventory.Machine) bool { return o.Name == m.Name }), err
}

// resolveContainers returns the digest of the container image that each reference means now, or has in the plan. A registry that does not
// answer is not asked again.
func (a *plans) resolveContainers(
	ctx context.Context, refs []action.ContainerReference, planned inventory.Plan, images []inventory.Image,
) (digests map[action.ContainerReference]string, warnings []string, err error) {
	digests = map[action.ContainerReference]string{}
	down := map[string]error{} // by registry
	for _, ref := range refs {
		digest, warning := digestInPlan(planned, ref), ""
		if digest == "" {
			digest, warning, err = a.resolveContainer(ctx, ref, images, down)
		}
		if err != nil {
			return nil, nil, err
		}
		digests[ref] = digest
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return digests, warnings, nil
}

// digestInPlan returns the digest that the plan has for ref, "" if it has none. A run's plan is stored already if the server was killed
// right after it stored it: then a tag that was moved since must not change the plan.
func digestInPlan(p inventory.Plan, ref action.ContainerReference) string {
	for _, x := range p.Actions {
		if r, err := action.ParseContainer(x.Image); x.Container != nil && err == nil && r == ref {
			return x.Container.Digest
		}
	}
	return ""
}

// resolveContainer returns the digest of the container image that ref means now. If the registry does not answer, this is the digest of the
// image that was stored last for ref, and warning says so. down has the error of each registry that has not answered: resolveContainer does
// not ask it, and adds to down.
func (a *plans) resolveContainer(
	ctx context.Context, ref action.ContainerReference, images []inventory.Image, down map[string]error,
) (digest, warning string, err error) {
	var last inventory.Image
	for _, i := range images {
		if c := i.Container; c != nil {
			if c.HasDigest(ref.Digest) {
				return c.Digest, "", nil
			}
			if c.Reference == ref.String() && i.Created.After(last.Created) {
				last = i
			}
		}
	}
	if a.Site.ResolveContainer == nil {
		return "", "", fmt.Errorf("container image %s: this server fetches no images: %w", ref, inventory.ErrInvalid)
	}

	registry := strings.ToLower(ref.Registry)
	if err = down[registry]; err != nil {
		err = fmt.Errorf("container image %s: %w", ref, err)
	} else if digest, err = a.Site.ResolveContainer(ctx, ref); errors.Is(err, inventory.ErrUnreachable) {
		down[registry] = err
	}
	if errors.Is(err, inventory.ErrUnreachable) && last.Container != nil {
		return last.Container.Digest, fmt.Sprintf("%s: the registry does not answer (%v): the run uses image %s, which was stored for this tag",
			ref, err, last.Name), nil
	}
	return digest, "", err
}

// FetchImages stores the files of other servers that the run needs and for which its template gives no digest. Files that are stored
// already are left as they are.
func (a *plans) FetchImages(ctx context.Context, q PlanRequest) error {
	defer heartbeat(ctx)()
	m, err := a.Machines.Machine(ctx, q.Machine)
	if err != nil {
		return fmt.Errorf("planning %q: %w", q.Machine, err)
	}
	out := newPlanned(q, m)
	r, _, err := a.renderTemplate(ctx, q, m, out)
	for _, f := range r.Fetch {
		if err == nil {
			err = a.fetchImage(ctx, f, q.By)
		}
	}
	if err != nil {
		return fmt.Errorf("planning %q: %w", q.Machine, err)
	}
	return nil
}

// fetchImage stores one file. If another run fetches it just now, fetchImage waits.
func (a *plans) fetchImage(ctx context.Context, f template.Fetch, by string) error {
	for {
		err := a.Site.FetchImage(ctx, f.Name, f.URL, by)
		if !errors.Is(err, inventory.ErrConflict) {
			return err
		}
		if err := pause(ctx, time.After(probeEvery)); err != nil {
			return err
		}
	}
}
