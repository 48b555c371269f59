package cli

import (
	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
)

func notifyCommand(o *Options) *cobra.Command {
	type notice struct {
		ID string `json:"id"`
	}

	test := o.NewCommand(&cobra.Command{
		Use: "test", Short: "Send a notice now, to find out whether notices arrive", Args: cobra.NoArgs,
		Long: `Send a notice now, ahead of those that wait, and show what the receiver answers.
The receiver and the secret are set under notify: in the server's configuration.`,
		Example: "  ingot notify test",
	}, func(c *Call) error {
		return postAndShow(c, client.Path("notices", "test"), nil, text(func(n notice) string {
			return "The receiver accepted notice " + n.ID + "."
		}))
	})

	return Group("notify", "Notices to a webhook when an operator is needed", "  ingot notify test", test)
}
