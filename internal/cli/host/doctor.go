package host

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/doctor"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func doctorCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "doctor", Short: "Check this host and its server, and suggest remedies", Args: cobra.NoArgs,
		Long: `Check this host: configuration, keys, inventory database, disk space, clock,
capabilities, ports, interfaces, other DHCP servers, boot files and notices. If the
server runs, also check Temporal, notices, secrets, images, the URLs of images and the
log-in to every BMC.

Each check prints one line, and a remedy if it finds a problem. The exit code is 1 if
any check fails.`,
		Example: "  ingot doctor\n  ingot doctor --output json",
	}, func(c *cli.Call) error {
		findings := doctor.Run(c.Context(), c.Lookup, c.Flags().Changed("config"))
		err := cli.ShowValue(c, client.List[doctor.Finding]{Items: findings}, func(w io.Writer) error {
			return cli.PrintTable(w, nil, findings, func(f doctor.Finding) []any {
				text := f.Text
				if f.Remedy != "" {
					text += "  → " + f.Remedy
				}
				return []any{cli.State(f.State), f.What, text}
			})
		})
		if err != nil {
			return err
		}

		failed := 0
		for _, f := range findings {
			if f.State == doctor.StateFail {
				failed++
			}
		}
		if failed > 0 {
			return fmt.Errorf("%s of %d failed", human.Count(failed, "check"), len(findings))
		}
		return nil
	})
}
