package bootsvc

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Installers gives access to the plans of runs that boot another installer than the agent.
type Installers interface {
	// Plan returns the plan of a run. This package uses only the field Installer of the plan.
	Plan(ctx context.Context, run string) (inventory.Plan, error)
	// SpendBoot records that the last payload of a boot was delivered completely. After that, the machine is sent to
	// its disk. SpendBoot returns inventory.ErrFenced if boot is no longer the machine's current boot.
	SpendBoot(ctx context.Context, o inventory.Owner, boot int, payload string) error
}

// installers finds the installers that plans name, and opens their images.
type installers struct {
	cfg  *Config
	urls *urls
}

// find returns the installer that the plan of d's run names.
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
	// If another server has become active since the plan was made, the parameters contain the URL of the previous
	// server: replace it.
	i.Parameters = slices.Clone(i.Parameters)
	for n, a := range i.Parameters {
		i.Parameters[n] = inventory.Rebase(a, plan.ImagesURL, p.urls.base()+"/images")
	}
	return i, nil
}

// reasons returns sentences for Why that describe the installer of d's run, or say why it cannot be booted.
func (p *installers) reasons(ctx context.Context, d Decision) []string {
	i, err := p.find(ctx, d)
	if err != nil {
		return []string{"but the installer cannot be booted: " + err.Error()}
	}
	out := []string{fmt.Sprintf("the installer: kernel %s, initramfs %s; the boot is spent once %s was delivered completely",
		i.Kernel, strings.Join(i.Initrds, " and "), i.Payload)}
	for _, name := range slices.Compact(i.Images()) {
		f, err := p.open(ctx, i, name)
		if err != nil {
			out = append(out, fmt.Sprintf("but image %s cannot be served: %v", name, err))
			continue
		}
		_ = f.Close() // the image was opened only to check that it can be served
	}
	return out
}

// planned is an image that a plan names: the open file, and the record in the inventory.
type planned struct {
	io.ReadSeekCloser
	inventory.Image
}

// open opens the image of the installer i that has this name. If the plan contains the digest of the image, open
// selects the file by this digest, even if the image was replaced since.
func (p *installers) open(ctx context.Context, i inventory.Installer, name string) (planned, error) {
	sum, pinned := i.Digests[name]
	if !pinned && i.Digests != nil {
		return planned{}, fmt.Errorf("image %q is not in the plan: %w", name, inventory.ErrNotFound)
	}
	f, image, err := p.cfg.Images.OpenImage(ctx, name, sum)
	return planned{f, image}, err
}
