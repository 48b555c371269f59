package cli

import (
	"crypto/rand"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

func temporalCommand(o *Options) *cobra.Command {
	return Group("temporal", "Prepare a Temporal cluster, and use Temporal's own command with this site",
		"  ingot temporal ui\n  ingot temporal token",
		temporalUICommand(o), temporalTokenCommand(o))
}

func temporalUICommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "ui", Short: "Print a one-time link to Temporal's web UI", Args: cobra.NoArgs,
		Long: `Print a link that opens the web UI of the embedded Temporal server in a browser, once
and within five minutes. The UI only shows workflows. It is served at
temporal.ui_listen, by default port 8234 of the host of "listen".`,
		Example: "  xdg-open \"$(ingot temporal ui)\"",
	}, func(c *Call) error { return c.printLink("temporal-ui-links") })
}

func temporalTokenCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "token", Short: "Create a token that opens /codec for a day, and print it", Args: cobra.NoArgs,
		Long: `Create a token for Temporal's command line (the program temporal), and print it once.
With the token, that program can have "ingot serve" decrypt the payloads that
temporal.encryption_key_file encrypts. The token opens nothing else and is valid for
24 hours. For a program of your own, see "ingot token create --role codec".`,
		Example: "  export TEMPORAL_CODEC_AUTH=\"Bearer $(ingot temporal token)\"",
	}, func(c *Call) error {
		return c.createToken(apitypes.TokenRequest{
			Name: "temporal-" + strings.ToLower(rand.Text()), Role: inventory.RoleCodec, For: "24h",
		})
	})
}
