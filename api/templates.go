package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// TemplateStore holds the operators' templates.
type TemplateStore interface {
	Template(ctx context.Context, name string) (inventory.Template, error)
	Templates(ctx context.Context) ([]inventory.Template, error)
	PutTemplate(ctx context.Context, t inventory.Template, by string) error
	DeleteTemplate(ctx context.Context, name, by string) error
}

type templates struct {
	store    TemplateStore
	machines *machines
	images   *images
}

func (t *templates) routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/v1/templates", Needs: inventory.RoleRead, Handler: httpapi.Get(t.list)},
		{
			Method:  "POST",
			Path:    "/v1/templates",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, t.create),
		},
		{Method: "GET", Path: "/v1/templates/:name", Needs: inventory.RoleRead, Handler: httpapi.Get(t.get)},
		{Method: "DELETE", Path: "/v1/templates/:name", Needs: inventory.RoleOperate, Handler: httpapi.Delete(t.delete)},
		// Both execute the template that the request holds, for at most 5 seconds.
		{
			Method:  "POST",
			Path:    "/v1/templates/lint",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, t.lint),
		},
		{
			Method:  "POST",
			Path:    "/v1/templates/:name/render",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, t.render),
		},
	}
}

// find returns a stored or built-in template.
func (t *templates) find(ctx context.Context, name string) (inventory.Template, error) {
	found, err := t.store.Template(ctx, name)
	if !errors.Is(err, inventory.ErrNotFound) {
		return found, err
	}
	if b, ok := findBuiltin(name); ok {
		return b, nil
	}
	return found, hint(fmt.Errorf("template %q: %w", name, inventory.ErrNotFound), "ingot template list")
}

// check adds a problem to problems if no template has this name. The error that check returns is always an error of the
// store.
func (t *templates) check(ctx context.Context, problems *inventory.Problems, field, name string) error {
	_, err := t.find(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		problems.Add(field, "ingot template list", "there is no template %q", name)
		return nil
	}
	return err
}

func findBuiltin(name string) (inventory.Template, bool) {
	for _, b := range template.Builtins() {
		if b.Name == name {
			return b, true
		}
	}
	return inventory.Template{}, false
}

func (t *templates) list(ctx context.Context, q httpapi.Page) (httpapi.List[inventory.Template], error) {
	all, err := t.store.Templates(ctx)
	if err != nil {
		return httpapi.List[inventory.Template]{}, err
	}
	for _, b := range template.Builtins() {
		if !slices.ContainsFunc(all, func(x inventory.Template) bool { return x.Name == b.Name }) {
			all = append(all, b)
		}
	}

	return httpapi.PageByName(all, q, func(x inventory.Template) string { return x.Name })
}

// templateDocument is a template as a client gives it.
type templateDocument struct {
	Name   string `json:"name"`
	Source string `json:"source"`
}

type newTemplate struct {
	templateDocument
	// Updated, if given, must be when the stored template was updated, or the request is refused.
	Updated time.Time `json:"updated"`
}

func (t *templates) create(ctx context.Context, q newTemplate) (inventory.Template, error) {
	stored, err := q.parse()
	stored.Updated = q.Updated
	if err == nil {
		err = t.store.PutTemplate(ctx, stored, httpapi.Actor(ctx))
	}
	if err != nil {
		return inventory.Template{}, err
	}
	return t.store.Template(ctx, stored.Name)
}

// parse returns the template as it is to be stored.
func (q templateDocument) parse() (inventory.Template, error) {
	parsed, err := template.Parse(q.Name, []byte(q.Source))
	if err != nil {
		return inventory.Template{}, err
	}
	name := cmp.Or(q.Name, parsed.Name)
	if !inventory.SafeName(name) {
		return inventory.Template{}, inventory.Invalid("name", inventory.SafeNameRule, "invalid name of a template %q", name)
	}
	if _, ok := findBuiltin(name); ok {
		return inventory.Template{}, fmt.Errorf("template %q is built in; choose another name: %w", name, inventory.ErrConflict)
	}
	return inventory.Template{Name: name, Source: q.Source}, nil
}

func (t *templates) get(ctx context.Context, q byName) (inventory.Template, error) {
	return t.find(ctx, q.Name)
}

func (t *templates) delete(ctx context.Context, q byName) error {
	if _, ok := findBuiltin(q.Name); ok {
		return fmt.Errorf("template %q is built in and cannot be deleted: %w", q.Name, inventory.ErrConflict)
	}
	return t.store.DeleteTemplate(ctx, q.Name, httpapi.Actor(ctx))
}

type lintTemplate struct {
	Source string `json:"source"`
}

// lint checks a template without a machine, and stores nothing.
func (t *templates) lint(_ context.Context, q lintTemplate) (template.Linted, error) {
	return template.Lint("", []byte(q.Source))
}

type renderTemplate struct {
	byName
	Machine     string            `json:"machine"`
	Image       string            `json:"image"`
	HardwareMap map[string]string `json:"hardwareMap"`
	// Source, if not "", is rendered instead of a stored template. The name is then used only in messages.
	Source  string `json:"source"`
	Explain bool   `json:"explain"`
}

func (t *templates) render(ctx context.Context, q renderTemplate) (template.Rendering, error) {
	found := inventory.Template{Name: q.Name, Source: q.Source}
	if q.Source == "" {
		var err error
		if found, err = t.find(ctx, q.Name); err != nil {
			return template.Rendering{}, err
		}
	}

	m, others, err := t.machinesOf(ctx, q)
	if err != nil {
		return template.Rendering{}, err
	}
	out, err := t.renderFor(ctx, found, m, others, q)
	if err != nil {
		return template.Rendering{}, err
	}

	answer := template.Rendering{
		Actions: httpapi.NewList(out.Actions).Items, GlobalTimeout: out.GlobalTimeout, DiskAlias: out.DiskAlias,
		Warnings: out.Warnings,
	}
	if q.Explain {
		answer.Explanation = &out.Explanation
	}
	return answer, nil
}

// machinesOf returns the machine for which a template is rendered, and the other machines that carry out the template with it: those that
// the hardware map names besides it, if it names several.
func (t *templates) machinesOf(ctx context.Context, q renderTemplate) (inventory.Machine, []inventory.Machine, error) {
	m, err := t.machines.find(ctx, q.Machine)
	if err != nil || len(q.HardwareMap) == 0 {
		return m, nil, err
	}
	all, err := t.machines.stores.Machines.Machines(ctx)
	if err != nil {
		return m, nil, err
	}
	named, err := inventory.MachinesOfMap(all, q.HardwareMap)
	if err != nil || !slices.ContainsFunc(named, func(x inventory.Machine) bool { return x.Name == m.Name }) {
		return m, nil, nil // the template is for m only
	}
	return m, without(named, m), nil
}

// without returns the machines without m.
func without(machines []inventory.Machine, m inventory.Machine) []inventory.Machine {
	return slices.DeleteFunc(slices.Clone(machines), func(x inventory.Machine) bool { return x.Name == m.Name })
}

// renderFor renders a template for the machine m, as a plan does.
func (t *templates) renderFor(
	ctx context.Context, found inventory.Template, m inventory.Machine, others []inventory.Machine, q renderTemplate,
) (template.Rendered, error) {
	all, err := t.images.store.Images(ctx)
	if err != nil {
		return template.Rendered{}, err
	}
	d := template.Data{
		Machine: m, Others: others, HardwareMap: q.HardwareMap, Images: inventory.ImagesByURL(all, t.images.url),
		RequireDigest: t.images.RequireDigest, UploadHosts: t.images.UploadHosts,
	}
	if t.images.BaseURL != nil {
		d.ImagesURL = t.images.BaseURL()
	}
	if name := cmp.Or(q.Image, m.Image); name != "" {
		i, err := t.images.find(ctx, name)
		if err != nil {
			return template.Rendered{}, err
		}
		d.Image, d.ImageURL = &i, t.images.url(i)
	}

	out, err := template.Render(ctx, found.Name, found.Source, d)
	if err != nil && d.Image != nil && d.ImageURL == "" {
		err = fmt.Errorf("rendering template %q: image %q has no address, because no interface is configured: "+
			"run ingot init, then start the server again: %w", found.Name, d.Image.Name, inventory.ErrInvalid)
	}
	return out, err
}
