package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/machinefile"
	"github.com/ingotmetal/ingot/internal/seed"
	"github.com/ingotmetal/ingot/internal/strictyaml"
)

// TestNetworkExample: the example of a network is a valid machine, and reaches cloud-init.
func TestNetworkExample(t *testing.T) {
	b, err := os.ReadFile("configuration.md")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(b), "## The network of the installed system")
	_, text, _ = strings.Cut(text, "```yaml\n")
	text, _, found := strings.Cut(text, "```")
	require.True(t, found)
	docs, err := strictyaml.Documents("configuration.md", []byte(text))
	require.NoError(t, err)
	ms, notes, err := machinefile.Read("configuration.md", docs)
	require.NoError(t, err)
	require.Empty(t, notes)
	m := ms[0]
	for _, doc := range []string{string(seed.NetworkConfig(m)), string(seed.Netplan(m))} {
		require.Contains(t, doc, `"primary": "port1"`)
	}
	require.Contains(t, seed.Networkd(m)["20-storage.netdev"], "Id=40")
}
