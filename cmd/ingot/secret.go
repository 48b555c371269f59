package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

func secretCmd(o *options) *cobra.Command {
	return group("secret", "Stored secrets and their keys", "  ingot secret status\n  ingot secret rotate\n  ingot secret reset", secretStatusCmd(o), secretRotateCmd(o), secretResetCmd(o))
}

type secretState struct {
	State      string   `json:"state"`
	Unreadable []string `json:"unreadable"`
}

func secretStatusCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Tell whether stored secrets can be read", Args: cobra.NoArgs, Example: "  ingot secret status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[secretState](cmd.Context(), c, "GET", path("secrets"), nil)
			if err != nil {
				return err
			}
			if err := show(cmd, o, a, func(w io.Writer, s secretState) error {
				fmt.Fprintf(w, "key: %s\n", s.State)
				for _, x := range s.Unreadable {
					fmt.Fprintf(w, "cannot be read: %s\n", inert(x))
				}
				return nil
			}); err != nil || a.v.State == "ok" {
				return err
			}
			return advice{
				fmt.Errorf("%s cannot be read, and nothing can be armed", count(len(a.v.Unreadable), "secret")),
				"put the right key file back and start ingot serve again; if it is lost: ingot secret reset",
			}
		},
	}
}

type rotated struct {
	Sealed int `json:"sealed"`
}

func secretRotateCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Replace the keys of stored secrets", Args: cobra.NoArgs,
		Long: `Replace the keys of stored secrets and seal the secrets again, while the server
goes on. If it breaks off, nothing is lost: the key file holds both the old keys
and the new ones until everything is sealed again, and the server finishes it at
its next start.

Copies of the key file and of the database that were made before still open each
other: destroy those that may have leaked, and change the passwords in them. The
key of claims and the signer of plans stay.`,
		Example: "  ingot secret rotate",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "POST", path("secrets", "rotate"), nil, func(w io.Writer, v rotated) error {
				_, err := fmt.Fprintf(w, "keys replaced, %s sealed again\nnext: back up the key file, apart from the data\n", count(v.Sealed, "secret"))
				return err
			})
		},
	}
}

func secretResetCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "reset", Short: "Give up the secrets whose key is lost", Args: cobra.NoArgs,
		Long: `Give up the secrets whose key is lost: list what has to be entered again, forget
what cannot be read, and go on with the key file that is there, or a new one if
there is none. Works on this host's data directory while ingot serve is stopped.`,
		Example: "  ingot secret reset",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			db := filepath.Join(cfg.DataDir, "ingot.db")
			if _, err := os.Stat(db); err != nil {
				return fmt.Errorf("there is no inventory in %s: %w", cfg.DataDir, inventory.ErrNotFound)
			}
			if hostnet.ServerAnswers(cmd.Context(), cfg) {
				return fmt.Errorf("a server answers at %s: stop ingot serve first: %w", cfg.Listen, inventory.ErrConflict)
			}
			keys, err := keyring.Load(cfg.KeyFile)
			lost := errors.Is(err, fs.ErrNotExist)
			if err != nil && !lost {
				return err
			}
			unreadable, err := withStore(cmd.Context(), db, keys, (*sqlite.Store).SecretsUnreadable)
			if err != nil {
				return err
			}
			runs, err := withStore(cmd.Context(), db, keys, (*sqlite.Store).RunsUnreadable)
			if err != nil {
				return err
			}
			if len(unreadable)+len(runs) == 0 && !lost {
				say(cmd, "every secret can be read; there is nothing to reset")
				return nil
			}
			for _, x := range unreadable {
				say(cmd, "to be entered again: %s", x)
			}
			for _, x := range runs {
				say(cmd, "lost: %s", x)
			}
			what := fmt.Sprintf("forgets %s for good", count(len(unreadable)+len(runs), "secret"))
			if lost {
				what += " and makes a new key file " + cfg.KeyFile
			}
			if err := confirm(cmd, yes, what, "reset"); err != nil {
				return err
			}
			if lost {
				if keys, err = keyring.Create(cfg.KeyFile); err != nil {
					return err
				}
			}
			forgotten, err := withStore(cmd.Context(), db, keys, func(s *sqlite.Store, ctx context.Context) ([]string, error) {
				return s.ResetSecrets(ctx, "admin")
			})
			if err != nil {
				return err
			}
			return showValue(cmd, o, map[string][]string{"forgotten": append([]string{}, forgotten...)}, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s forgotten\nnext: ingot serve, then enter them again: ingot machine push --replace --file FILE\n", count(len(forgotten), "secret"))
				return err
			})
		},
	}
	yesFlag(c, &yes)
	return c
}

// withStore opens the inventory for one deed.
func withStore(ctx context.Context, db string, keys *keyring.Ring, do func(*sqlite.Store, context.Context) ([]string, error)) (_ []string, err error) {
	s, err := sqlite.Open(ctx, db, keys.Sealer())
	if err != nil {
		return nil, fmt.Errorf("opening the inventory: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return do(s, ctx)
}
