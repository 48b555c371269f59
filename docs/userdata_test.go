package docs

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// TestUserDataRecipes: Ingot accepts each recipe of user-data.md and, where it is unpacked, so does the schema of
// cloud-init.
func TestUserDataRecipes(t *testing.T) {
	b, err := os.ReadFile("user-data.md")
	require.NoError(t, err)
	found := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```(yaml|json|sh)\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		first, _, _ := strings.Cut(m[2], "\n")
		switch first {
		case `version: "0.1"`:
			_, err := template.Parse("recipe", []byte(m[2]))
			require.NoError(t, err, m[2])
		case "name: node-1":
			docs, err := strictyaml.Documents("recipe", []byte(m[2]))
			require.NoError(t, err)
			machines, notes, err := machinefile.Read("recipe", docs)
			require.NoError(t, err, m[2])
			require.Empty(t, notes)
			checkUserData(t, machines[0])
		default:
			checkUserData(t, inventory.Machine{
				Name: "node-1", UserData: inventory.NewSecret(m[2]),
				Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01"}},
			})
		}
		found[m[1]]++
	}
	require.Equal(t, map[string]int{"yaml": 8, "sh": 1, "json": 1}, found)
}

// checkUserData requires that m is valid, and that the program for which its user-data is recognises the user-data.
func checkUserData(t *testing.T, m inventory.Machine) {
	t.Helper()
	require.Empty(t, inventory.Validate(m))
	text := m.UserData.Reveal()
	switch {
	case text == "":
	case strings.HasPrefix(text, "{"):
		require.True(t, json.Valid([]byte(text)), text)
	default:
		require.True(t, cloudinit.Joinable(m.UserData), text)
	}
	if strings.HasPrefix(text, cloudinit.CloudConfig) {
		checkCloudConfig(t, text)
	}
}

// checkCloudConfig validates a cloud-config against the schema of the unpacked cloud-init, if there is one.
func checkCloudConfig(t *testing.T, text string) {
	t.Helper()
	var config map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &config))
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	clients := filepath.Join(cache, "ingot-lab", "pkg", "clients")
	if _, err := os.Stat(filepath.Join(clients, ".stamp")); err != nil {
		t.Log("cloud-init's schema is not compared: make deps-e2e")
		return
	}

	file := filepath.Join(clients, "usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var modules struct {
		Defs map[string]struct{ Properties map[string]any } `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(b, &modules))
	known := map[string]bool{}
	for _, d := range modules.Defs {
		for key := range d.Properties {
			known[key] = true
		}
	}
	for key := range config {
		require.True(t, known[key], "cloud-init has no key %q", key) // its schema allows any
	}

	schema, err := jsonschema.NewCompiler().Compile(file)
	require.NoError(t, err)
	asJSON, err := json.Marshal(config)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(asJSON)))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(doc), text)
}
