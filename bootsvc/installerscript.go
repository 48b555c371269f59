package bootsvc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// installerScript returns the script that boots the installer of d's run. Its only
// secret is the capability path (security S44).
func (s *scripts) installerScript(ctx context.Context, m inventory.Machine, d Decision, autoexec bool) (string, error) {
	i, err := s.installers.find(ctx, d)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Compact(i.Images()) {
		f, err := s.installers.open(ctx, i, name)
		if err != nil {
			return "", err
		}
		_ = f.Close() // nothing was read
	}
	line, err := s.installerLine(m, d, i)
	if err != nil {
		return "", err
	}
	base := s.urls.boot(d)
	var load strings.Builder
	fmt.Fprintf(&load, "kernel %s%s %s || goto again\n", base, i.Kernel, line)
	for _, name := range i.Initrds {
		fmt.Fprintf(&load, "initrd --name %s %s%s || goto again\n", name, base, name)
	}
	return s.netbootScript(d, "Ingot boots the installer of "+m.Name, load.String(), autoexec), nil
}

// installerLine returns the kernel command line of an installer.
func (s *scripts) installerLine(m inventory.Machine, d Decision, i inventory.Installer) (string, error) {
	for _, name := range i.Images() {
		if !isFileName(name) || !imageName.MatchString(name) {
			return "", fmt.Errorf("image %q is invalid in a boot script: %w", name, inventory.ErrInvalid)
		}
	}
	if err := checkNames(m, d); err != nil {
		return "", err
	}
	var args []string
	for _, name := range i.Initrds {
		args = append(args, "initrd="+name)
	}
	for _, a := range append(slices.Clone(i.Parameters), m.KernelArgs...) {
		a, err := inventory.Resolve(a, func(ref string) (string, error) {
			switch ref {
			case inventory.RefBootURL:
				return s.urls.boot(d), nil
			case inventory.RefDocumentsURL, inventory.RefWebhookURL, inventory.RefMetadataURL:
				v, _ := cloudinit.Reference(ref, s.cfg.MetadataURL, s.cfg.ClaimKey, d.Owner) // it knows these three
				return v, nil
			}
			return "", fmt.Errorf("not allowed on a kernel command line: %w", inventory.ErrInvalid)
		})
		if err != nil {
			return "", err
		}
		if why := inventory.InstallerParameterProblem(a); why != "" { // a may name a capability: it is not shown
			return "", fmt.Errorf("a kernel parameter of the installer of machine %s %s: %w", m.Name, why, inventory.ErrInvalid)
		}
		args = append(args, a)
	}
	return joinLine(m, args)
}
