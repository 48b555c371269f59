package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// GenesisStore holds lab files, which describe a whole site for Genesis.
type GenesisStore interface {
	PutGenesis(ctx context.Context, b inventory.GenesisBundle, by string) (inventory.GenesisBundle, error)
	Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error)
	GenesisList(ctx context.Context) ([]inventory.GenesisBundle, error)
	DeleteGenesis(ctx context.Context, name, by string) error
	MergeLabMachines(ctx context.Context, l inventory.LabMachines) ([]inventory.MergedMachine, error)
}

type genesisRoutes struct {
	store      GenesisStore
	keys       KeyStore
	machines   *machines
	templates  *templates
	images     *images
	operations *operations
	log        *slog.Logger
}

func (g *genesisRoutes) routes() []httpapi.Route {
	const one = "/v1/genesis/:name"

	return []httpapi.Route{
		// Genesis can move the server, with its keys, to a host that the lab file names. So to write it needs the role admin.
		{Method: "GET", Path: "/v1/genesis", Needs: inventory.RoleRead, Handler: httpapi.Get(g.list)},
		// GET returns the plan of a lab file. It never returns the file itself, which may contain secrets.
		{Method: "GET", Path: one, Needs: inventory.RoleRead, Handler: httpapi.Get(g.getPlan)},
		{Method: "PUT", Path: one, Needs: inventory.RoleAdmin, Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, g.put)},
		{Method: "DELETE", Path: one, Needs: inventory.RoleAdmin, Handler: httpapi.Delete(g.delete)},
		{Method: "GET", Path: one + "/status", Needs: inventory.RoleRead, Handler: httpapi.Get(g.getStatus)},
		{Method: "POST", Path: one + "/plan", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, g.getPlan)},
		{Method: "POST", Path: one + "/start", Needs: inventory.RoleAdmin, Handler: acceptOptional(g.start)},
		{
			Method:  "POST",
			Path:    one + "/resume",
			Needs:   inventory.RoleAdmin,
			Handler: httpapi.Handle(http.StatusAccepted, httpapi.NoBody, g.resume),
		},
		{
			Method:  "POST",
			Path:    one + "/cancel",
			Needs:   inventory.RoleAdmin,
			Handler: httpapi.Handle(http.StatusAccepted, httpapi.NoBody, g.cancel),
		},
	}
}

// find returns a stored lab file and its plan. The plan may have problems although the file was stored, because the
// server that stored the file may have been an older version, which did not find them.
func (g *genesisRoutes) find(ctx context.Context, name string) (inventory.GenesisBundle, genesis.Plan, error) {
	b, err := g.store.Genesis(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return b, genesis.Plan{}, hint(fmt.Errorf("lab file %q: %w", name, inventory.ErrNotFound), "ingot genesis plan FILE")
	}
	if err != nil {
		return b, genesis.Plan{}, err
	}
	p, err := g.plan(ctx, b)

	return b, p, err
}

// plan returns the plan of a lab file. If the file itself has mistakes, plan returns an inventory.Problems with these
// mistakes and the problems of the plan.
func (g *genesisRoutes) plan(ctx context.Context, b inventory.GenesisBundle) (genesis.Plan, error) {
	l, err := genesis.Load(b.File, b.Read, systems.All{})
	var wrong inventory.Problems
	if err != nil && !errors.As(err, &wrong) {
		return genesis.Plan{}, err
	}
	nameIsWrong := func(p inventory.Problem) bool { return p.Field == "name" || p.Field == "" && p.File == b.File }
	if l.Name != b.Name && !slices.ContainsFunc(wrong, nameIsWrong) {
		wrong = append(wrong, l.Locate(inventory.Problems{{
			Field: "name", What: fmt.Sprintf("is %q, but the request says %q", l.Name, b.Name), Remedy: "send the name from the lab file",
		}})...)
	}
	p, err := g.planLab(ctx, b, l)
	if err == nil && len(wrong) > 0 {
		err = l.Together(wrong, p.Problems)
	}

	return p, err
}

// planLab returns what a Genesis of the lab file would do on this server now. It also checks that the images that would
// be fetched are available.
func (g *genesisRoutes) planLab(ctx context.Context, b inventory.GenesisBundle, l genesis.Lab) (genesis.Plan, error) {
	p := genesis.Plan{
		Name: b.Name, SHA256: b.SHA256, Files: slices.Sorted(maps.Keys(b.Files)), Steps: l.Steps(), Destroys: l.Destroys(),
		Problems: inventory.Problems{}, Warnings: append(inventory.Problems{}, l.Warnings()...),
	}
	images, err := g.images.store.Images(ctx)
	if err != nil {
		return p, err
	}
	stored := inventory.ImagesByName(images)
	p.Problems = append(p.Problems, l.CheckImages(stored, nil)...)
	p.Problems = append(p.Problems, l.CheckSources(stored, func(address string) error { return g.images.probe(ctx, address) })...)

	var problems inventory.Problems
	for n, m := range l.Machines {
		field := fmt.Sprintf("machines[%d].", n)
		g.machines.bmc.validate(&problems, field, m.BMC)
		if m.Template != "" {
			if err := g.templates.check(ctx, &problems, field+"template", m.Template); err != nil {
				return p, err
			}
		}
	}
	given := l.Inventory(b.Replace)
	merged, err := g.store.MergeLabMachines(ctx, given)
	if err != nil {
		return p, err
	}
	problems = append(problems, given.Differing(merged)...)
	p.Problems = append(p.Problems, l.Locate(problems)...)

	return p, nil
}

func (g *genesisRoutes) list(ctx context.Context, _ httpapi.Empty) (httpapi.List[inventory.GenesisBundle], error) {
	all, err := g.store.GenesisList(ctx)
	return httpapi.NewList(all), err
}

func (g *genesisRoutes) getPlan(ctx context.Context, q byName) (genesis.Plan, error) {
	_, p, err := g.find(ctx, q.Name)
	return p, err
}

type putGenesis struct {
	byName
	File    string            `json:"file"`
	Files   map[string]string `json:"files"`
	Replace bool              `json:"replace"`
	// Only means that the request stores nothing and only returns the plan. The plan says whether a password is the stored one.
	Only bool `json:"only"`
}

// put validates and stores a lab file together with the files that it names, and returns the plan. It adds no machines
// to the inventory; Genesis adds them later.
func (g *genesisRoutes) put(ctx context.Context, q putGenesis) (genesis.Plan, error) {
	b := inventory.GenesisBundle{Name: q.Name, File: q.File, Files: map[string]inventory.Secret{}, Replace: q.Replace}
	for name, text := range q.Files {
		b.Files[name] = inventory.NewSecret(text)
	}
	if err := b.Check(); err != nil {
		return genesis.Plan{}, err
	}
	b.SHA256 = b.Digest()
	p, err := g.plan(ctx, b)
	if err != nil || q.Only {
		return p, err
	}

	// The steps of an open Genesis read the stored file, so the file must not change.
	if err := g.refuseRunning(ctx, b.Name); err != nil {
		return genesis.Plan{}, err
	}
	stored, err := g.store.PutGenesis(ctx, b, httpapi.Actor(ctx))
	if err != nil {
		return genesis.Plan{}, err
	}
	g.log.Info("lab file stored", "name", b.Name, "sha256", stored.SHA256, "by", httpapi.Actor(ctx))

	return p, nil
}

// refuseRunning returns a conflict if a Genesis of the lab file is open.
func (g *genesisRoutes) refuseRunning(ctx context.Context, name string) error {
	return g.operations.refuseBeside(ctx, inventory.OperationFilter{ID: workflows.GenesisID(name)})
}

func (g *genesisRoutes) delete(ctx context.Context, q byName) error {
	if err := g.refuseRunning(ctx, q.Name); err != nil {
		return err
	}
	return g.store.DeleteGenesis(ctx, q.Name, httpapi.Actor(ctx))
}

type startGenesis struct {
	byName
	// Again means that the run also repeats installations that an earlier run has finished.
	Again bool `json:"again"`
}

func (g *genesisRoutes) start(ctx context.Context, q startGenesis) (apitypes.Started, error) {
	return g.begin(ctx, workflows.GenesisInput{Name: q.Name, Again: q.Again})
}

// begin starts a Genesis. It returns an error if the secret key is not valid. Unless the Genesis resumes an earlier
// run, it also returns an error if the plan has problems.
func (g *genesisRoutes) begin(ctx context.Context, in workflows.GenesisInput) (apitypes.Started, error) {
	b, p, err := g.find(ctx, in.Name)
	if err == nil {
		err = g.keys.KeyCheck(ctx)
	}
	if err == nil && !in.Resume {
		// This is not done for a resumed run, whose steps check again what they need.
		err = p.Problems.Err()
	}
	if err != nil {
		return apitypes.Started{}, err
	}

	in.By = httpapi.Actor(ctx)
	started, err := g.operations.start(ctx, engine.Start{
		ID: workflows.GenesisID(in.Name), Type: inventory.TypeGenesis, Input: in,
	}, in.Name)
	if err == nil {
		g.log.Info("genesis begins", "name", in.Name, "run", started.Run, "lab", b.SHA256, "resume", in.Resume,
			"by", in.By)
	}
	return started, err
}

// resume continues a Genesis that has stopped. If its run waits for a decision of the operator, resume sends the
// decision to retry or to continue. If its run has failed or was cancelled, resume starts a new run, which begins at
// the first step that is not done.
func (g *genesisRoutes) resume(ctx context.Context, q byName) (apitypes.Started, error) {
	o, err := g.latest(ctx, q.Name)
	if err != nil {
		return apitypes.Started{}, err
	}
	show := "ingot genesis status " + q.Name
	switch {
	case inventory.Final(o.State) && o.State != inventory.StateSuccess:
		return g.begin(ctx, workflows.GenesisInput{Name: q.Name, Resume: true})
	case inventory.Final(o.State):
		return apitypes.Started{}, hint(fmt.Errorf("%s has already succeeded: %w", o.ID, inventory.ErrConflict), show)
	case o.Question == nil:
		return apitypes.Started{}, hint(fmt.Errorf("%s is under way and has no open question: %w", o.ID, inventory.ErrConflict), show+" --wait")
	}

	for _, choice := range []string{contract.Retry, contract.Continue} {
		if slices.Contains(o.Question.Choices, choice) {
			d := contract.Decision{Question: o.Question.ID, Choice: choice}
			return apitypes.Started{Workflow: o.ID, Run: o.Run}, g.operations.passDecision(ctx, o, d, show)
		}
	}
	return apitypes.Started{}, hint(fmt.Errorf("%s asks the operator a question that neither retry nor continue answers: %w",
		o.ID, inventory.ErrConflict), "ingot operation decide "+o.ID)
}

// latest returns the newest Genesis run of a lab file.
func (g *genesisRoutes) latest(ctx context.Context, name string) (inventory.Operation, error) {
	o, err := g.operations.find(ctx, "genesis."+name)
	if errors.Is(err, inventory.ErrNotFound) {
		err = hint(fmt.Errorf("genesis %q was never started: %w", name, inventory.ErrNotFound), "ingot genesis start FILE")
	}
	return o, err
}

func (g *genesisRoutes) getStatus(ctx context.Context, q byName) (inventory.Operation, error) {
	return g.latest(ctx, q.Name)
}

func (g *genesisRoutes) cancel(ctx context.Context, q byName) (apitypes.Started, error) {
	o, err := g.latest(ctx, q.Name)
	if err != nil {
		return apitypes.Started{}, err
	}
	return g.operations.end(ctx, o)
}
