package bootsvc

import (
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// The HTTP paths of loaders, and of the script.
const (
	loaderPath = "/ipxe/binary/"
	scriptPath = "/" + autoexecName
)

// SnippetFiles returns the boot files that another DHCP server should name, see neighbours.Snippet. If loader is one
// of inventory.SecureLoaders, UEFI machines get its shim instead of iPXE; a shim also boots with Secure Boot off. If
// loader is "", SnippetFiles returns the files for iPXE first, and then those for each of inventory.SecureLoaders.
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

// snippetLoaders returns the files for UEFI: one to boot by PXE, and one to boot by HTTP. Debian's GRUB supports only
// TFTP, so with shim a machine that boots by HTTP still gets iPXE.
func snippetLoaders(name string) (pxe, http string) {
	pxe = loaderFor(inventory.Interface{Loader: name}, wire.ArchUEFI)
	if pxe == loaderShim {
		return pxe, loaderUEFI
	}
	return pxe, pxe
}
