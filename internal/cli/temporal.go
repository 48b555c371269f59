package cli

import (
	"crypto/rand"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

func temporalCommand(o *Options) *cobra.Command {
	return Group("temporal", "Prepare a Temporal cluster, and use the temporal CLI with this site",
		"  ingot temporal ui\n  ingot temporal token",
		temporalUICommand(o), temporalTokenCommand(o))
}

func temporalUICommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "ui", Short: "Print a one-time link to Temporal's web UI", Args: cobra.NoArgs,
		Long: `Print a link that opens the web UI of the embedded Temporal server in a browser. The
link works once, within five minutes. The UI can show workflows, but not change them. It
is served at temporal.ui_listen, by default on port 8234 of the host in "listen".`,
		Example: "  xdg-open \"$(ingot temporal ui)\"",
	}, func(c *Call) error { return c.printLink("temporal-ui-links") })
}

func temporalTokenCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "token", Short: "Create and print a token for /codec, valid for a day", Args: cobra.NoArgs,
		Long: `Create a token for the temporal CLI, and print it once. With the token, the CLI asks
"ingot serve" to decrypt workflow payloads, which are encrypted if
temporal.encryption_key_file is set. The token permits nothing else and is valid for 24 hours.
For a program of your own, see "ingot token create --role codec".`,
		Example: "  export TEMPORAL_CODEC_AUTH=\"Bearer $(ingot temporal token)\"",
	}, func(c *Call) error {
		return c.createToken(apitypes.TokenRequest{
			Name: "temporal-" + strings.ToLower(rand.Text()), Role: inventory.RoleCodec, For: "24h",
		})
	})
}
