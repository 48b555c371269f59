package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// TestNetworkExample: the example of a network is a valid machine, and reaches cloud-init.
func TestNetworkExample(t *testing.T) {
	b, err := os.ReadFile("configuration.md")
	require.NoError(t, err)
	machine := func(heading string) inventory.Machine {
		_, text, _ := strings.Cut(string(b), heading)
		_, text, _ = strings.Cut(text, "```yaml\n")
		text, _, found := strings.Cut(text, "```")
		require.True(t, found)
		docs, err := strictyaml.Documents("configuration.md", []byte(text))
		require.NoError(t, err)
		ms, notes, err := machinefile.Read("configuration.md", docs)
		require.NoError(t, err)
		require.Empty(t, notes)
		require.Empty(t, inventory.Validate(ms[0]))
		return ms[0]
	}
	m := machine("## The network of the installed system")
	for _, doc := range []string{string(cloudinit.NetworkConfig(m)), string(cloudinit.Netplan(m))} {
		require.Contains(t, doc, `"primary": "port1"`)
	}
	require.Contains(t, cloudinit.Networkd(m)["20-storage.netdev"], "Id=40")

	leased := machine("### Routers outside of the subnet")
	require.Equal(t, 2, strings.Count(string(cloudinit.NetworkConfig(leased)), `"on-link": true`))
}
