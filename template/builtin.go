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

// Names of the built-in templates. In the template of an installer, the comment at the top lists what the template needs; its document is
// the machine's user-data.
const (
	BuiltinImage           = "image"            // writes the image; cloud-init reads a CIDATA partition
	BuiltinImageMetadata   = "image-metadata"   // writes the image; cloud-init reads the metadata server
	BuiltinVyOS            = "vyos"             // writes a raw image of VyOS and its config.boot
	BuiltinTalos           = "talos"            // boots Talos, which installs itself
	BuiltinTalosImage      = "talos-image"      // writes a raw image of Talos and its configuration
	BuiltinHarvesterCreate = "harvester-create" // boots Harvester's installer: the first node
	BuiltinHarvesterJoin   = "harvester-join"   // boots Harvester's installer: further nodes
)

// Builtins returns the built-in templates, by name.
func Builtins() []inventory.Template {
	var out []inventory.Template
	entries, err := builtin.ReadDir("builtin")
	if err != nil {
		panic(err) // embedded at build time: cannot fail
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
