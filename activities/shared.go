package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// shared is embedded by every struct with activities.
type shared struct {
	Config
	lastLab labCache
}

// event stores the event e with the current time.
func (a *shared) event(ctx context.Context, e inventory.Event) error {
	e.At = a.Now()
	return a.Events.AppendEvents(ctx, []inventory.Event{e})
}

// readOwnGrant returns the grant of o's machine, or inventory.ErrFenced if o does not hold this grant.
func (a *shared) readOwnGrant(ctx context.Context, o inventory.Owner) (inventory.Grant, error) {
	g, err := a.Grants.Grant(ctx, o.Machine)
	if err == nil && g.Owner != o {
		err = fmt.Errorf("machine %q is owned by run %q at epoch %d: %w", o.Machine, g.Run, g.Epoch, inventory.ErrFenced)
	}
	return g, err
}

// fence returns inventory.ErrFenced if o does not hold the grant of its machine.
func (a *shared) fence(ctx context.Context, o inventory.Owner) error {
	_, err := a.readOwnGrant(ctx, o)
	return err
}

// labCache holds the lab file that was read last, after checking. Without it, most activities would spend half of
// their time on reading and checking the file.
type labCache struct {
	mu     sync.Mutex
	sha256 string // "" while nothing is cached
	lab    genesis.Lab
}

func (a *shared) lab(ctx context.Context, name string) (genesis.Lab, inventory.GenesisBundle, error) {
	b, err := a.Genesis.Genesis(ctx, name)
	if err != nil {
		return genesis.Lab{}, b, err
	}

	a.lastLab.mu.Lock()
	defer a.lastLab.mu.Unlock()
	if b.SHA256 == "" || a.lastLab.sha256 != b.SHA256 {
		lab, err := genesis.Load(b.File, b.Read, systems.All{})
		if err != nil {
			return genesis.Lab{}, b, err
		}
		a.lastLab.lab, a.lastLab.sha256 = lab, b.SHA256
	}
	return a.lastLab.lab, b, nil
}

// installations returns the machine's runs of Provision and Reprovision, newest first.
func (a *shared) installations(ctx context.Context, machine string) ([]inventory.Workflow, error) {
	list, err := a.Workflows.Workflows(ctx, inventory.WorkflowFilter{Machine: machine})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(w inventory.Workflow) bool {
		return w.Type != inventory.TypeProvision && w.Type != inventory.TypeReprovision
	}), nil
}

// latestInstallation returns the newest of the machine's installations, or inventory.ErrNotFound.
func (a *shared) latestInstallation(ctx context.Context, machine string) (inventory.Workflow, error) {
	list, err := a.installations(ctx, machine)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("machine %q was never installed: %w", machine, inventory.ErrNotFound)
	}
	if err != nil {
		return inventory.Workflow{}, err
	}
	return list[0], nil
}

// relayServers returns the DHCP servers to which the lab's router relays.
func (a *shared) relayServers(ctx context.Context, r *genesis.Router) ([]string, error) {
	return a.Routers.RelayServers(ctx, newEndpoint(r.API, r.Fingerprint), r.Key)
}

// requireImages returns an error if this server lacks an image file that plan.Actions[from:] or the plan's
// installer needs. It is called before the machine is started.
func (a *shared) requireImages(ctx context.Context, machine string, plan inventory.Plan, from int) error {
	if a.Site.ImageStored == nil {
		return nil
	}

	for _, i := range plan.Images(from) {
		err := a.Site.ImageStored(ctx, i)
		if errors.Is(err, inventory.ErrNotFound) {
			err = fmt.Errorf("image %q (sha256 %.12s) was replaced or deleted after the plan was made: "+
				"start again (ingot workflow retry %s --from start): %w",
				i.Name, i.SHA256, machine, inventory.ErrConflict)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// template returns the named template: the stored one, or a built-in one.
func (a *shared) template(ctx context.Context, name string) (inventory.Template, error) {
	t, err := a.Templates.Template(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		builtins := template.Builtins()
		if n := slices.IndexFunc(builtins, func(b inventory.Template) bool { return b.Name == name }); n >= 0 {
			return builtins[n], nil
		}
	}
	return t, err
}
