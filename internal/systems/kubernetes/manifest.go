package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/inventory"
)

// object is one document of a manifest.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
	body []byte
}

func (o object) String() string {
	if o.Metadata.Namespace == "" {
		return o.Kind + "/" + o.Metadata.Name
	}
	return o.Kind + "/" + o.Metadata.Namespace + "/" + o.Metadata.Name
}

// parseManifest returns the objects of a manifest. Errors of the parser are left out of its errors, because they may quote the manifest,
// which may hold secrets.
func parseManifest(manifest inventory.Secret) ([]object, error) {
	var out []object
	d := yaml.NewDecoder(strings.NewReader(manifest.Reveal()))
	for n := 1; ; n++ {
		var tree yaml.Node
		err := d.Decode(&tree)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d of the manifest is not YAML: %w", n, inventory.ErrInvalid)
		}
		if len(tree.Content) == 0 || tree.Content[0].Tag == "!!null" {
			continue
		}

		var o object
		if tree.Decode(&o) != nil || o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" {
			return nil, fmt.Errorf("document %d of the manifest needs apiVersion, kind and metadata.name: %w",
				n, inventory.ErrInvalid)
		}
		var body bytes.Buffer
		if yaml.NewEncoder(&body).Encode(&tree) != nil {
			return nil, fmt.Errorf("document %d of the manifest cannot be encoded: %w", n, inventory.ErrInvalid)
		}
		o.body = body.Bytes()
		out = append(out, o)
	}
}
