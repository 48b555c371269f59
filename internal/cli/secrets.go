package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func secretCommand(o *options) *cobra.Command {
	return group("secret", "Stored secrets and their keys",
		"  ingot secret status\n  ingot secret rotate\n  ingot secret reset",
		secretStatusCommand(o), secretRotateCommand(o), secretResetCommand(o))
}

func secretStatusCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "status", Short: "Show whether stored secrets can be read", Args: cobra.NoArgs,
		Example: "  ingot secret status",
	}, func(c *call) error {
		a, err := get[apitypes.SecretsStatus](c, client.Path("secrets"))
		if err != nil {
			return err
		}

		err = show(c, a, func(w io.Writer, s apitypes.SecretsStatus) error {
			fmt.Fprintf(w, "key: %s\n", s.State)
			for _, x := range s.Unreadable {
				fmt.Fprintf(w, "cannot be read: %s\n", inert(x))
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

func secretRotateCommand(o *options) *cobra.Command {
	type rotated struct {
		Sealed int `json:"sealed"`
	}

	return o.command(&cobra.Command{
		Use: "rotate", Short: "Replace the keys of stored secrets", Args: cobra.NoArgs,
		Long: `Replace the keys of stored secrets and seal the secrets again, while the server
works as usual. If it is interrupted, nothing is lost: the key file holds both the
old keys and the new ones until everything is sealed again, and the server
finishes it at its next start.

Earlier copies of the key file and of the database still open each other: destroy
those that may have leaked, and change the passwords in them. The key of claims
and the signer of plans stay.`,
		Example: "  ingot secret rotate",
	}, func(c *call) error {
		return postAndShow(c, client.Path("secrets", "rotate"), nil, text(func(v rotated) string {
			return fmt.Sprintf("keys replaced, %s sealed again\nnext: back up the key file, apart from the data",
				human.Count(v.Sealed, "secret"))
		}))
	})
}

func secretResetCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reset", Short: "Give up the secrets whose key is lost", Args: cobra.NoArgs,
		Long: `Give up the secrets whose key is lost: list what has to be entered again, delete
what cannot be read, and continue with the key file that is there, or a new one if
there is none. Works on this host's data directory while ingot serve is stopped.`,
		Example: "  ingot secret reset",
	}

	yes := yesFlag(cmd)

	return o.command(cmd, func(c *call) error {
		cfg, err := c.loadConfig()
		if err != nil {
			return err
		}
		if err := checkStopped(c, cfg); err != nil {
			return err
		}

		if err := checkHasKeys(cfg); err != nil {
			return err
		}

		keys, err := keyring.Load(cfg.KeyFile)
		noKeyFile := errors.Is(err, fs.ErrNotExist)
		if err != nil && !noKeyFile {
			return err
		}

		lost, err := server.ListUnreadable(c.Context(), cfg, keys)
		if err != nil {
			return err
		}
		if len(lost.Secrets)+len(lost.Runs) == 0 && !noKeyFile {
			c.note("every secret can be read; there is nothing to reset")
			return nil
		}
		if err := confirmReset(c, *yes, cfg, lost, noKeyFile); err != nil {
			return err
		}

		if noKeyFile {
			if keys, err = keyring.Create(cfg.KeyFile); err != nil {
				return err
			}
		}
		deleted, err := server.ResetSecrets(c.Context(), cfg, keys)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s forgotten\nnext: ingot serve, then enter them again: "+
			"ingot machine push --replace --file FILE", human.Count(len(deleted), "secret"))
		return showText(c, map[string][]string{"forgotten": append([]string{}, deleted...)}, text)
	})
}

// checkStopped refuses to work on a data directory that is missing or in use.
func checkStopped(c *call, cfg config.Config) error {
	if _, err := os.Stat(server.InventoryFile(cfg)); err != nil {
		return fmt.Errorf("no inventory in %s: %w", cfg.DataDir, inventory.ErrNotFound)
	}
	if hostnet.ServerAnswers(c.Context(), cfg) {
		return fmt.Errorf("a server answers at %s: stop ingot serve first: %w", cfg.Listen, inventory.ErrConflict)
	}
	return nil
}

// checkHasKeys refuses to give keys to a server whose site has moved away.
func checkHasKeys(cfg config.Config) error {
	mark, retired, err := siterole.ReadMark(cfg.KeyFile)
	switch {
	case err != nil:
		return err
	case retired && mark.Retired.To.Name != "":
		return fmt.Errorf("this server is retired: its site and its keys have moved to %s: %w", mark.Retired.To.Name,
			inventory.ErrConflict)
	case retired:
		return fmt.Errorf("this server is retired: its keys were destroyed: %w", inventory.ErrConflict)
	}
	return nil
}

// confirmReset lists what will be lost and asks for confirmation.
func confirmReset(c *call, yes bool, cfg config.Config, lost server.Unreadable, noKeyFile bool) error {
	for _, x := range lost.Secrets {
		c.note("to be entered again: %s", x)
	}

	for _, x := range lost.Runs {
		c.note("lost: %s", x)
	}

	what := "permanently deletes " + human.Count(len(lost.Secrets)+len(lost.Runs), "secret")
	if noKeyFile {
		what += " and makes a new key file " + cfg.KeyFile
	}

	return c.confirm(yes, what, "reset")
}
