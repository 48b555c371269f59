package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func checkBootFiles(_ context.Context, d *host) (out []Finding) {
	n := d.cfg.Netboot
	loaders := bootFilesRemedy(n.Loaders, "/usr/share/ingot/ipxe", "netboot.loaders", "apt install ipxe, then /usr/lib/ipxe")
	agentOS := bootFilesRemedy(n.AgentOS, "/usr/share/ingot", "netboot.agent_os", "make build, then the directory bin/agentos")
	for _, f := range []struct{ dir, key, file, remedy string }{
		{n.Loaders, "netboot.loaders", "undionly.kpxe", loaders},
		{n.Loaders, "netboot.loaders", "snponly.efi", loaders},
		{n.AgentOS, "netboot.agent_os", "vmlinuz", agentOS},
		{n.AgentOS, "netboot.agent_os", "initramfs", agentOS},
		{n.AgentOS, "netboot.agent_os", action.RuntimeFile, agentOS},
	} {
		if slices.Contains(bootsvc.SecureLoaderFiles(n.Loader), f.file) {
			continue // checkSecureBoot checks this file
		}
		at := filepath.Join(f.dir, f.file)
		st, err := os.Stat(at)
		switch {
		case f.dir == "":
			out = append(out, fail("%s is not set, so %s is missing", f.key, f.file).remedy(f.remedy))
		case err != nil && f.file == action.RuntimeFile:
			out = append(out, warn("%s: %v; no machine can run a container", at, errors.Unwrap(err)).remedy(f.remedy))
		case err != nil:
			out = append(out, fail("%s: %v", at, errors.Unwrap(err)).remedy(f.remedy))
		case st.Size() == 0:
			out = append(out, fail("%s is empty", at).remedy(f.remedy))
		default:
			out = append(out, ok("%s, %s", at, human.Size(st.Size())))
		}
	}

	return append(out, checkSecureBoot(n)...)
}

// bootFilesRemedy returns the remedy for missing boot files. dir is the value of the configuration key key, which names the directory of
// the files. packaged is the directory of the files in the Debian package. sources describes how to get the files without the package.
func bootFilesRemedy(dir, packaged, key, sources string) string {
	if filepath.Clean(dir) == packaged {
		return "reinstall the package ingot: apt install --reinstall ./ingot_VERSION_amd64.deb"
	}
	return fmt.Sprintf("set %s: %s with the package ingot; without the package: %s", key, packaged, sources)
}

// checkSecureBoot checks that all files exist that netboot.loader needs. If netboot.loader is not set,
// interfaces with loader: shim use Debian's shim if that exists. Its second stage, GRUB, must then exist, too.
func checkSecureBoot(n config.Netboot) (out []Finding) {
	missing := func(file string) bool {
		st, err := os.Stat(filepath.Join(n.Loaders, file))
		return err != nil || !st.Mode().IsRegular() || st.Size() == 0
	}
	for _, file := range bootsvc.SecureLoaderFiles(n.Loader) {
		if missing(file) {
			out = append(out, fail("netboot.loader is %s, but the directory netboot.loaders has no %s", n.Loader, file).
				remedy(loaderRemedy(n.Loader, file)+", or leave netboot.loader out"))
		}
	}

	const shim, grub, signedIPXE = "shimx64.efi", "grubx64.efi", "snponly-shim.efi"
	at := filepath.Join(n.Loaders, shim)
	switch {
	case n.Loaders == "" || n.Loader != "" || missing(shim):
	case !missing(grub):
		out = append(out, ok("%s and its second stage, %s, are in the same directory", at, grub))
	case missing(signedIPXE): // signed iPXE also uses this shim, to start kernels
		out = append(out, fail("%s needs its second stage, %s, in the same directory", at, grub).remedy(loaderRemedy(inventory.LoaderShim, grub)))
	}
	return out
}

// checkLoaders reports the version of each loader, and compares its SBAT generations with netboot.minimum_sbat.
// A component that this key does not name is compared with the lowest generation without known vulnerabilities.
func checkLoaders(_ context.Context, d *host) (out []Finding) {
	n := d.cfg.Netboot
	dir, set := n.Loaders, n.MinimumSBAT
	files, err := sbat.ReadDir(dir)
	if err != nil {
		return nil // checkBootFiles reports missing files
	}

	var have []string
	for _, f := range files {
		out = append(out, checkLoader(f, n))
		for _, c := range f.Program.Components {
			have = append(have, c.Name)
		}
	}
	for _, name := range set.Names() {
		if !slices.Contains(have, name) {
			out = append(out, warn("netboot.minimum_sbat names the component %s, which no loader in %s has", name, dir).
				remedy("correct the name, or leave it out"))
		}
	}
	return out
}

// checkLoader reports the version of a loader, and whether its SBAT generations are too low. See checkLoaders.
func checkLoader(f sbat.File, n config.Netboot) Finding {
	set, remedy := n.MinimumSBAT, loaderRemedy(n.Loader, f.Name)
	if f.Err != nil && len(set) > 0 && !errors.Is(f.Err, sbat.ErrNotUEFI) {
		return fail("%s: %v; the file is not served, because netboot.minimum_sbat is set", f.Name, f.Err).remedy(remedy)
	}
	if below := set.Below(f.Name, f.Program); len(below) > 0 {
		return fail("%s: %s: %s (netboot.minimum_sbat): the file is not served", f.Name, f.Program, shortfalls(below)).remedy(remedy)
	}
	if !f.Program.Signed && slices.Contains(bootsvc.SecureLoaderFiles(n.Loader), f.Name) {
		return fail("%s: %s: Secure Boot refuses the file, which netboot.loader %s needs", f.Name, f.Program, n.Loader).remedy(remedy)
	}
	if f.Err != nil {
		return warn("%s: %v", f.Name, f.Err).remedy(remedy)
	}

	known := sbat.Known()
	for name := range set {
		delete(known, name)
	}
	below := known.Below(f.Name, f.Program)
	switch {
	case len(below) > 0:
		return warn("%s: %s: %s", f.Name, f.Program, shortfalls(below)).remedy(remedy)
	case !f.Program.Signed && sbat.MustBeSigned(f.Name):
		return warn("%s: %s: Secure Boot refuses the file", f.Name, f.Program).remedy(remedy)
	}
	return ok("%s: %s", f.Name, f.Program)
}

// shortfalls describes components below their minimum generation, with their known vulnerabilities.
func shortfalls(below []sbat.Shortfall) string {
	var texts []string
	for _, s := range below {
		text := s.String()
		if known := sbat.Vulnerabilities(s.Component, s.Have); known != "" {
			text += fmt.Sprintf(", known vulnerabilities: %s", known)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// loaderRemedy tells the user how to get the file called name, which is missing or outdated, into the directory
// netboot.loaders. loader is the value of netboot.loader.
func loaderRemedy(loader, name string) string {
	switch {
	case name == "shimx64.efi":
		return "copy shimx64.efi.signed from Debian's newest package shim-signed into netboot.loaders, as shimx64.efi"
	case name == "grubx64.efi":
		return "copy grubnetx64.efi.signed from Debian's newest package grub-efi-amd64-signed into netboot.loaders, as grubx64.efi"
	case name == "snponly-shim.efi", name == "snponly.efi" && loader == inventory.LoaderIPXEShim:
		return "copy x86_64-sb/" + name + " from the iPXE project's newest ipxeboot.tar.gz into netboot.loaders"
	}
	return "take " + name + " from a newer package"
}
