package api

import (
	"context"
	"net/http"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// ApplicationStore stores what documents describe, and remembers what it has stored.
type ApplicationStore interface {
	Apply(
		ctx context.Context, a inventory.Application, check func(next, before []inventory.Machine) error, by string,
	) ([]inventory.Applied, error)
}

// applications applies documents.
type applications struct {
	store    ApplicationStore
	machines *machines
}

func (a *applications) routes() []httpapi.Route {
	return []httpapi.Route{
		{
			Method: "POST", Path: "/v1/apply", Needs: inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusOK, httpapi.Body{Limit: maxPush}, a.apply),
		},
	}
}

type applyDocuments struct {
	Set            string              `json:"set"`
	Machines       []inventory.Machine `json:"machines"`
	Templates      []templateDocument  `json:"templates"`
	ForceConflicts bool                `json:"forceConflicts"`
	Prune          bool                `json:"prune"`
	PruneOnly      []string            `json:"pruneOnly"`
	DryRun         bool                `json:"dryRun"`
}

// Validate returns an error if the request contains nothing, or is to prune no named set.
func (q *applyDocuments) Validate() error {
	var ps inventory.Problems
	if len(q.Machines)+len(q.Templates) == 0 {
		ps.Add("machines", "", "no machine and no template was given")
	}
	if q.Set != "" && !inventory.SafeName(q.Set) {
		ps.Add("set", inventory.SafeNameRule, "invalid name of a set %q", q.Set)
	}
	if q.Prune && q.Set == "" {
		ps.Add("prune", "name a set", "only what was applied under the name of a set can be pruned")
	}
	return ps.Err()
}

// apply stores machines and templates, all or none.
func (a *applications) apply(ctx context.Context, q applyDocuments) (apitypes.Application, error) {
	in := inventory.Application{
		Set:       q.Set,
		Machines:  q.Machines,
		Force:     q.ForceConflicts,
		Prune:     q.Prune,
		PruneOnly: q.PruneOnly,
		DryRun:    q.DryRun,
	}
	templates := map[string]bool{}
	for _, t := range q.Templates {
		parsed, err := t.parse()
		if err == nil && templates[parsed.Name] {
			err = inventory.Invalid("templates", "", "template %q was given twice", parsed.Name)
		}
		if err != nil {
			return apitypes.Application{}, err
		}
		templates[parsed.Name] = true
		in.Templates = append(in.Templates, parsed)
	}

	var next, before []inventory.Machine
	network := a.machines.netboot.network()
	items, err := a.store.Apply(ctx, in, func(changed, stored []inventory.Machine) error {
		next, before = changed, stored
		return a.machines.validate(changed, stored, network)
	}, httpapi.Actor(ctx))
	if err != nil {
		return apitypes.Application{}, err
	}
	out := apitypes.Application{Stored: !q.DryRun, Items: items, Warnings: []string{}}
	if q.DryRun {
		out.Warnings = append(append(out.Warnings, network.Warnings(next)...), a.machines.phoneHomeWarnings(ctx, next)...)
		return out, nil
	}
	after, err := a.machines.stores.Machines.Machines(ctx)
	out.Warnings = append(out.Warnings, a.machines.warnings(ctx, next, before, after)...)
	return out, err
}
