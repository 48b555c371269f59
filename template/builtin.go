package template

import (
	"embed"
	"path"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

//go:embed builtin/*.yaml
var builtin embed.FS

// Names of the built-in templates. The comment at the top of an installer's template lists what the template needs. The document of such a
// template is the machine's user-data.
const (
	BuiltinImage           = "image"            // writes the image; cloud-init reads its data from a CIDATA partition
	BuiltinImageMetadata   = "image-metadata"   // writes the image; cloud-init reads its data from the metadata server
	BuiltinVyOS            = "vyos"             // writes a raw image of VyOS, and the file config.boot
	BuiltinTalos           = "talos"            // boots Talos, which installs itself
	BuiltinTalosImage      = "talos-image"      // writes a raw image of Talos and the machine's configuration for Talos
	BuiltinHarvesterCreate = "harvester-create" // boots Harvester's installer for the first node of a cluster
	BuiltinHarvesterJoin   = "harvester-join"   // boots Harvester's installer for a further node of a cluster
)

// Builtins returns the built-in templates, sorted by name.
func Builtins() []inventory.Template {
	var out []inventory.Template
	entries, err := builtin.ReadDir("builtin")
	if err != nil {
		panic(err) // cannot fail: the files are embedded in the program
	}

	for _, e := range entries {
		b, err := builtin.ReadFile(path.Join("builtin", e.Name()))
		if err != nil {
			panic(err) // cannot fail either
		}
		out = append(out, inventory.Template{Name: strings.TrimSuffix(e.Name(), ".yaml"), Source: string(b), Builtin: true})
	}

	slices.SortFunc(out, func(a, b inventory.Template) int { return strings.Compare(a.Name, b.Name) })
	return out
}
