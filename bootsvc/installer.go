package bootsvc

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Installers provides the boots of other installers.
type Installers interface {
	// Plan returns the plan of a run. Only its installer is used.
	Plan(ctx context.Context, run string) (inventory.Plan, error)
	// SpendBoot records that the last payload of a boot was completely delivered.
	// From then on the machine is sent to its disk. It returns inventory.ErrFenced
	// if the boot is no longer the current one.
	SpendBoot(ctx context.Context, o inventory.Owner, boot int, payload string) error
}

// installers finds the installers of plans and their images.
type installers struct {
	cfg  *Config
	urls *urls
}

// find returns the installer of d's run.
func (p *installers) find(ctx context.Context, d Decision) (inventory.Installer, error) {
	if p.cfg.Installers == nil || p.cfg.Images == nil {
		return inventory.Installer{}, fmt.Errorf("finding the installer of machine %q: this server does not serve installers: %w",
			d.Machine, inventory.ErrUnsupported)
	}
	plan, err := p.cfg.Installers.Plan(ctx, d.Owner.Run)
	if err == nil && plan.Installer == nil {
		err = inventory.ErrNotFound
	}
	if err != nil {
		return inventory.Installer{}, fmt.Errorf("finding the installer of machine %q: %w", d.Machine, err)
	}
	i := *plan.Installer
	// If the site has moved since the plan was made, replace the old server's URL.
	i.Parameters = slices.Clone(i.Parameters)
	for n, a := range i.Parameters {
		i.Parameters[n] = inventory.Rebase(a, plan.ImagesURL, p.urls.base()+"/images")
	}
	return i, nil
}

// reasons describes the installer of d's run, and why it cannot be booted.
func (p *installers) reasons(ctx context.Context, d Decision) []string {
	i, err := p.find(ctx, d)
	if err != nil {
		return []string{"but it cannot be booted: " + err.Error()}
	}
	out := []string{fmt.Sprintf("the installer: kernel %s, initramfs %s; the boot is spent when %s was delivered whole",
		i.Kernel, strings.Join(i.Initrds, " and "), i.Payload)}
	for _, name := range slices.Compact(i.Images()) {
		f, err := p.open(ctx, i, name)
		if err != nil {
			out = append(out, fmt.Sprintf("but image %s cannot be served: %v", name, err))
			continue
		}
		_ = f.Close() // nothing was read
	}
	return out
}

// planned is an open image and its record.
type planned struct {
	io.ReadSeekCloser
	inventory.Image
}

// open opens an image of an installer by the digest in the plan, even if the
// image has been replaced since.
func (p *installers) open(ctx context.Context, i inventory.Installer, name string) (planned, error) {
	sum, pinned := i.Digests[name]
	if !pinned && i.Digests != nil {
		return planned{}, fmt.Errorf("image %q is not in the plan: %w", name, inventory.ErrNotFound)
	}
	f, image, err := p.cfg.Images.OpenImage(ctx, name, sum)
	return planned{f, image}, err
}
