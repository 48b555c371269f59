package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func secretCommand(o *Options) *cobra.Command {
	return Group("secret", "Stored secrets and their keys",
		"  ingot secret status\n  ingot secret rotate\n  ingot secret reset",
		secretStatusCommand(o), secretRotateCommand(o))
}

func secretStatusCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "status", Short: "Show whether stored secrets can be decrypted", Args: cobra.NoArgs,
		Example: "  ingot secret status",
	}, func(c *Call) error {
		a, err := get[apitypes.SecretsStatus](c, client.Path("secrets"))
		if err != nil {
			return err
		}

		err = show(c, a, func(w io.Writer, s apitypes.SecretsStatus) error {
			fmt.Fprintf(w, "key: %s\n", s.State)
			for _, x := range s.Unreadable {
				fmt.Fprintf(w, "cannot be read: %s\n", Inert(x))
			}
			return nil
		})
		if err != nil || a.Value.State == "ok" {
			return err
		}

		return human.Advise(
			fmt.Errorf("%s cannot be read, and no machine can be armed", human.Count(len(a.Value.Unreadable), "secret")),
			"put the right key file back and start ingot serve again; if it is lost: ingot secret reset")
	})
}

func secretRotateCommand(o *Options) *cobra.Command {
	type rotated struct {
		Sealed int `json:"sealed"`
	}

	return o.NewCommand(&cobra.Command{
		Use: "rotate", Short: "Replace the keys of stored secrets", Args: cobra.NoArgs,
		Long: `Replace the keys of the stored secrets and encrypt the secrets with the new keys, while
the server works as usual. If the command is interrupted, nothing is lost: the key file
keeps the old keys until every secret is encrypted with the new keys, and the server
completes this at its next start.

An old copy of the key file can still decrypt an old copy of the database: destroy
copies that may have leaked, and change the passwords in them. The key of boot claims
and the key that signs plans are not replaced.`,
		Example: "  ingot secret rotate",
	}, func(c *Call) error {
		return postAndShow(c, client.Path("secrets", "rotate"), nil, text(func(v rotated) string {
			return fmt.Sprintf("keys replaced, %s encrypted again\nnext: back up the key file, apart from the data",
				human.Count(v.Sealed, "secret"))
		}))
	})
}
