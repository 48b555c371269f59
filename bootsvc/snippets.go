package bootsvc

import (
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// The paths of loaders and of the script for clients of HTTP.
const (
	loaderPath = "/ipxe/binary/"
	scriptPath = "/" + autoexecName
)

// SnippetFiles returns the files that another DHCP server names to machines, see neighbours.Snippet. With a loader of
// inventory.SecureLoaders, UEFI machines get its shim instead of iPXE; it also boots with Secure Boot off. With "", the files of
// the other loaders follow: they are served, too.
func SnippetFiles(loader string) (out []neighbours.BootFiles, err error) {
	if loader != "" && !slices.Contains(inventory.SecureLoaders(), loader) {
		return nil, inventory.Invalid("loader", "write one of "+strings.Join(inventory.SecureLoaders(), ", "), "unknown loader %q", loader)
	}
	loaders := []string{loader}
	if loader == "" {
		loaders = append(loaders, inventory.SecureLoaders()...)
	}
	for _, name := range loaders {
		pxe, http := snippetLoaders(name)
		out = append(out, neighbours.BootFiles{
			BIOS: loaderBIOS, UEFI: pxe, HTTP: loaderPath + http, Script: scriptPath, Secure: name != "",
		})
	}
	return out, nil
}

// snippetLoaders returns the files for UEFI by TFTP and by HTTP. Debian's GRUB has only TFTP, so with shim a machine that
// boots by HTTP still gets iPXE.
func snippetLoaders(name string) (pxe, http string) {
	pxe = loaderFor(inventory.Interface{Loader: name}, wire.ArchUEFI)
	if pxe == loaderShim {
		return pxe, loaderUEFI
	}
	return pxe, pxe
}
