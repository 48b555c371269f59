package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
)

// An imageUserReader reads the objects that may need an image.
type imageUserReader struct{ stores Stores }

// imageUsers holds the objects that may need an image.
type imageUsers struct {
	planned   []inventory.PlannedImage
	runs      []inventory.Workflow // open runs
	templates []inventory.Template
	machines  []inventory.Machine // with their user data
	labs      []genesis.Lab
}

// read reads the open runs and their plans. Unless runsOnly is set, it also reads the templates, machines and lab
// files, because these name images for later installations.
func (r imageUserReader) read(ctx context.Context, runsOnly bool) (u imageUsers, err error) {
	if u.planned, err = r.stores.Images.PlannedImages(ctx); err != nil {
		return u, err
	}
	if u.runs, err = r.stores.Workflows.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: engine.MaxOpen}); err != nil {
		return u, err
	}
	if runsOnly {
		return u, nil
	}
	if u.templates, err = r.stores.Templates.Templates(ctx); err != nil {
		return u, err
	}
	if u.machines, err = r.stores.Machines.Machines(ctx); err != nil {
		return u, err
	}
	for n, m := range u.machines {
		if !m.HasUserData {
			continue
		}
		if u.machines[n].UserData, _, err = r.stores.Machines.UserData(ctx, m.Name); err != nil {
			return u, err
		}
	}
	u.labs, err = r.readLabs(ctx)

	return u, err
}

// readLabs reads the stored lab files.
func (r imageUserReader) readLabs(ctx context.Context) (labs []genesis.Lab, err error) {
	bundles, err := r.stores.Genesis.GenesisList(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range bundles {
		b, err := r.stores.Genesis.Genesis(ctx, b.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue // the lab file was deleted since, or the key of its secrets was lost
		}
		if err != nil {
			return nil, err
		}
		l, err := genesis.Load(b.File, b.Read, systems.All{})
		var wrong inventory.Problems // if the lab file has problems that only this version finds, use what could be read
		if err != nil && !errors.As(err, &wrong) {
			return nil, err
		}
		l.Name = b.Name
		labs = append(labs, l)
	}

	return labs, nil
}

// refuseReplacing returns a conflict if the new file of an image would change what a later installation writes: a
// machine, template or lab file names the image, and the digest of its present file is not sum. If sum is "", the
// digest of the new file is not known and counts as different. If replace is set, refuseReplacing returns nil.
func (r imageUserReader) refuseReplacing(ctx context.Context, name, sum string, replace bool) error {
	if replace {
		return nil
	}
	old, err := r.stores.Images.Image(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err != nil || sum != "" && old.HasDigest(sum) {
		return err
	}
	users, err := r.read(ctx, false)
	if err != nil {
		return err
	}
	who := users.namers(old)
	if who == "" {
		return nil
	}
	return hint(fmt.Errorf("image %q is already stored, and used by %s: with replace, these install the new file from now on: %w",
		name, who, inventory.ErrConflict), "ingot image add "+name+" … --replace   # or choose another name")
}

// namers returns a text for error messages that tells which machines, templates and lab files name an image. It returns
// "" if there are none.
func (u imageUsers) namers(i inventory.Image) string {
	var out []string
	add := func(kind string, names []string) {
		switch len(names) {
		case 0:
		case 1:
			out = append(out, kind+" "+names[0])
		default:
			shown := names[:min(len(names), 3)]
			text := fmt.Sprintf("%d %ss (%s", len(names), kind, strings.Join(shown, ", "))
			if len(names) > len(shown) {
				text += ", …"
			}
			out = append(out, text+")")
		}
	}
	var machines, templates, labs []string
	for _, m := range u.machines {
		if u.machineNames(m, i) {
			machines = append(machines, m.Name)
		}
	}
	for _, t := range u.templates {
		if inventory.NamesImage(t.Source, i.Name) || inventory.FetchesImage(t.Source, i) {
			templates = append(templates, t.Name)
		}
	}
	for _, l := range u.labs {
		if _, found := l.Image(i.Name); found {
			labs = append(labs, l.Name)
		}
	}
	add("machine", machines)
	add("template", templates)
	add("lab file", labs)
	return strings.Join(out, " and ")
}

// machineNames reports whether a machine names an image. The machine's user data is searched only for the names of
// installer images, because user data names the files that an installer fetches. The name of a disk image, such as
// "debian", has another meaning in user data.
func (u imageUsers) machineNames(m inventory.Machine, i inventory.Image) bool {
	return m.NamesImage(i.Name) || i.Use == inventory.UseInstaller && inventory.NamesImage(m.UserData.Reveal(), i.Name)
}

// checkUnused returns a conflict if an open run, a machine, a template or a lab file needs the image.
func (u imageUsers) checkUnused(i inventory.Image) error {
	inRun := func(run, machine string) error {
		return hint(fmt.Errorf("run %s of machine %q uses image %q: %w", run, machine, i.Name, inventory.ErrConflict), "ingot workflow get "+run)
	}
	for _, p := range u.planned {
		if p.SHA256 == i.SHA256 {
			return inRun(p.Run, p.Machine)
		}
	}
	for _, w := range u.runs {
		if w.Image == i.Name {
			return inRun(w.Run, w.Machine)
		}
	}
	if who := u.namers(i); who != "" {
		return hint(fmt.Errorf("image %q is used by %s: %w", i.Name, who, inventory.ErrConflict),
			"change what uses the image, or: ingot image delete "+i.Name+" --force")
	}
	return nil
}
