package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/sbat"
)

func checkBootFiles(_ context.Context, d *host) (out []Finding) {
	const loaders = "apt install ipxe, and loaders: /usr/lib/ipxe"
	const agentOS = "make build, and agent_os: the directory bin/agentos"
	n := d.cfg.Netboot
	for _, f := range []struct{ dir, key, file, remedy string }{
		{n.Loaders, "netboot.loaders", "undionly.kpxe", loaders},
		{n.Loaders, "netboot.loaders", "snponly.efi", loaders},
		{n.AgentOS, "netboot.agent_os", "vmlinuz", agentOS},
		{n.AgentOS, "netboot.agent_os", "initramfs", agentOS},
	} {
		at := filepath.Join(f.dir, f.file)
		st, err := os.Stat(at)
		switch {
		case f.dir == "":
			out = append(out, fail("%s is not set, so that %s is missing", f.key, f.file).remedy(f.remedy))
		case err != nil:
			out = append(out, fail("%s: %v", at, errors.Unwrap(err)).remedy(f.remedy))
		case st.Size() == 0:
			out = append(out, fail("%s is empty", at).remedy(f.remedy))
		default:
			out = append(out, ok("%s, %s", at, human.Size(st.Size())))
		}
	}

	out = append(out, checkShim(n.Loaders)...)
	for _, file := range bootsvc.SecureLoaderFiles(n.Loader) {
		if _, err := os.Stat(filepath.Join(n.Loaders, file)); err != nil {
			out = append(out, fail("netboot.loader is %s, and netboot.loaders has no %s", n.Loader, file).
				remedy("copy it there (docs/booting.md, Secure Boot), or leave netboot.loader out"))
		}
	}
	return out
}

// checkShim checks that shim, if it is there, has the second stage for which it asks.
func checkShim(dir string) []Finding {
	shim, grub := filepath.Join(dir, "shimx64.efi"), filepath.Join(dir, "grubx64.efi")
	if st, err := os.Stat(shim); dir == "" || err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if st, err := os.Stat(grub); err != nil || st.Size() == 0 {
		return []Finding{fail("%s has no grubx64.efi beside it, for which shim asks", shim).
			remedy("copy grubnetx64.efi.signed of Debian's package grub-efi-amd64-signed there as grubx64.efi")}
	}
	return []Finding{ok("%s has its grubx64.efi beside it", shim)}
}

// checkLoaders shows the versions of the loaders, and compares them with netboot.minimum_sbat and, where that is
// silent, with the generations below which vulnerabilities are known.
func checkLoaders(_ context.Context, d *host) (out []Finding) {
	dir, set := d.cfg.Netboot.Loaders, d.cfg.Netboot.MinimumSBAT
	files, err := sbat.ReadDir(dir)
	if err != nil {
		return nil // checkBootFiles names what is missing
	}

	var have []string
	for _, f := range files {
		out = append(out, checkLoader(f, set))
		for _, c := range f.Program.Components {
			have = append(have, c.Name)
		}
	}
	for _, name := range set.Names() {
		if !slices.Contains(have, name) {
			out = append(out, warn("netboot.minimum_sbat names %s, which no loader in %s has", name, dir).
				remedy("correct the name, or leave it out"))
		}
	}
	return out
}

// checkLoader shows the version of a loader.
func checkLoader(f sbat.File, set sbat.Minimum) Finding {
	remedy := loaderRemedy(f.Name)
	if f.Err != nil && len(set) > 0 && !errors.Is(f.Err, sbat.ErrNotUEFI) {
		return fail("%s: %v; with netboot.minimum_sbat it is not served", f.Name, f.Err).remedy(remedy)
	}
	if below := set.Below(f.Name, f.Program); len(below) > 0 {
		return fail("%s: %s: %s (netboot.minimum_sbat): it is not served", f.Name, f.Program, shortfalls(below)).remedy(remedy)
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
		return warn("%s: %s: Secure Boot refuses it", f.Name, f.Program).remedy(remedy)
	}
	return ok("%s: %s", f.Name, f.Program)
}

// shortfalls describes components below their minimum, with the vulnerabilities that are known of them.
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

// loaderRemedy says where a newer loader comes from.
func loaderRemedy(name string) string {
	switch name {
	case "shimx64.efi":
		return "copy shimx64.efi.signed of Debian's newest package shim-signed there as shimx64.efi"
	case "grubx64.efi":
		return "copy grubnetx64.efi.signed of Debian's newest package grub-efi-amd64-signed there as grubx64.efi"
	}
	return "take " + name + " from a newer package"
}
