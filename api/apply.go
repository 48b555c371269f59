package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
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

// maxFiles limits the text of all files of a request, in bytes. It is enough for 20,000 machines.
const maxFiles = 8 << 20

type applyDocuments struct {
	Set            string             `json:"set"`
	Machines       machineList        `json:"machines"`
	Templates      []templateDocument `json:"templates"`
	Files          []documentFile     `json:"files"`
	ForceConflicts bool               `json:"forceConflicts"`
	Create         bool               `json:"create"`
	Replace        []string           `json:"replace"`
	Prune          bool               `json:"prune"`
	PruneOnly      []string           `json:"pruneOnly"`
	DryRun         bool               `json:"dryRun"`
}

// documentFile is a file in any of the formats that "ingot apply" reads.
type documentFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Validate returns an error if the request contains nothing, or is to prune no named set. A request without documents empties a set, and
// must list what it deletes: the list of documents may be empty by mistake.
func (q *applyDocuments) Validate() error {
	var ps inventory.Problems
	objects, size := len(q.Machines)+len(q.Templates), 0
	for _, f := range q.Files {
		size += len(f.Text)
	}
	switch {
	case objects+len(q.Files) == 0 && (!q.Prune || q.PruneOnly == nil && !q.DryRun):
		ps.Add("machines", "to empty a set, give prune, and list in pruneOnly what is to be deleted", "no machine and no template was given")
	case objects > 0 && len(q.Files) > 0:
		ps.Add("files", "make two requests", "files cannot be given together with machines or templates")
	case size > maxFiles:
		ps.Add("files", "apply them with: ingot apply --file FILE", "the files have %d bytes, which is more than %d", size, maxFiles)
	}
	for _, kind := range q.Replace {
		checkWord(&ps, "replace", kind, inventory.KindMachine, inventory.KindTemplate)
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
	read, err := q.read()
	if err != nil {
		return apitypes.Application{}, err
	}
	out := apitypes.Application{Items: []inventory.Applied{}, Warnings: notStored(read)}
	if len(q.Files) > 0 && len(q.Machines)+len(q.Templates) == 0 { // the files describe only runs and jobs, which are not stored
		return out, nil
	}
	in := inventory.Application{
		Set:       q.Set,
		Machines:  q.Machines,
		Force:     q.ForceConflicts,
		Create:    q.Create,
		Replace:   q.Replace,
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
	var found inventory.Problems
	if errors.As(err, &found) {
		read.Locate(found)
	}
	if err != nil {
		return apitypes.Application{}, err
	}
	out.Items, out.Stored = items, !q.DryRun
	if q.DryRun {
		out.Warnings = append(append(out.Warnings, network.Warnings(next)...), a.machines.phoneHomeWarnings(ctx, next)...)
		return out, nil
	}
	after, err := a.machines.stores.Machines.Machines(ctx)
	out.Warnings = append(out.Warnings, a.machines.warnings(ctx, next, before, after)...)
	return out, err
}

// read adds what the files describe to the machines and templates of the request.
func (q *applyDocuments) read() (importfile.Import, error) {
	if len(q.Files) == 0 {
		return importfile.Import{}, nil
	}
	var files []importfile.File
	for _, f := range q.Files {
		files = append(files, importfile.File{Name: f.Name, Content: []byte(f.Text)})
	}
	read, err := importfile.Read(files)
	for _, m := range read.Machines {
		q.Machines = append(q.Machines, m.Machine)
	}
	for _, t := range read.Templates {
		q.Templates = append(q.Templates, templateDocument{Name: t.Name, Source: t.Source})
	}
	return read, err
}

// notStored returns a warning for each key that is not stored, and for each run and BMC job that is not started.
func notStored(read importfile.Import) []string {
	out := []string{}
	for _, i := range read.Ignored {
		out = append(out, fmt.Sprintf("%s: %s: %s is not stored: %s", i.Place, i.Object, i.Key, i.Why))
	}
	for _, s := range read.Starts {
		out = append(out, fmt.Sprintf("%s: %s is not started; start it with: %s", s.Place, s.Object, s.Command))
	}
	return out
}
