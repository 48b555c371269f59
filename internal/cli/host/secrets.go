package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func secretResetCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reset", Short: "Delete the stored secrets whose key is lost", Args: cobra.NoArgs,
		Long: `Delete the stored secrets that can no longer be decrypted because their key is lost,
after listing the secrets that have to be entered again. An existing key file is kept;
if there is none, a new one is created. Stop "ingot serve" first: the command works on
this host's data directory.`,
		Example: "  ingot secret reset",
	}

	yes := cli.YesFlag(cmd)

	return o.NewCommand(cmd, withConfig(func(c *cli.Call, cfg config.Config) error {
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
			c.Note("every secret can be read; there is nothing to reset")
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
		text := fmt.Sprintf("%s deleted\nnext: start ingot serve, then enter them again: "+
			"ingot machine push --replace --file FILE", human.Count(len(deleted), "secret"))
		return cli.ShowText(c, map[string][]string{"forgotten": append([]string{}, deleted...)}, text)
	}))
}

// checkStopped returns an error if there is no database, or if a running server uses the database.
func checkStopped(c *cli.Call, cfg config.Config) error {
	if _, err := os.Stat(server.InventoryFile(cfg)); err != nil {
		return fmt.Errorf("no inventory in %s: %w", cfg.DataDir, inventory.ErrNotFound)
	}
	if hostnet.ServerAnswers(c.Context(), cfg) {
		return fmt.Errorf("a server answers at %s: stop ingot serve first: %w", cfg.Listen, inventory.ErrConflict)
	}
	return nil
}

// checkHasKeys returns an error if this server is retired: its role and its keys have moved to another server, or its keys
// have been destroyed.
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

// confirmReset lists the secrets that a reset deletes, and asks for confirmation.
func confirmReset(c *cli.Call, yes bool, cfg config.Config, lost server.Unreadable, noKeyFile bool) error {
	for _, x := range lost.Secrets {
		c.Note("to be entered again: %s", x)
	}

	for _, x := range lost.Runs {
		c.Note("lost: %s", x)
	}

	what := "permanently deletes " + human.Count(len(lost.Secrets)+len(lost.Runs), "secret")
	if noKeyFile {
		what += " and makes a new key file " + cfg.KeyFile
	}

	return c.Confirm(yes, what, "reset")
}
