package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// ErrDamaged is an inventory that only a backup replaces.
var ErrDamaged = sqlite.ErrDamaged

// Unreadable names what a key file cannot open.
type Unreadable struct {
	Secrets []string // have to be entered again
	Runs    []string // lose their plans
}

// ListUnreadable reads the inventory of a server that is stopped and lists what
// keys cannot open; nil keys open nothing.
func ListUnreadable(ctx context.Context, cfg config.Config, keys *keyring.Ring) (u Unreadable, err error) {
	err = withStore(ctx, cfg, keys, func(s *sqlite.Store) error {
		if u.Secrets, err = s.Keys.SecretsUnreadable(ctx); err != nil {
			return err
		}
		u.Runs, err = s.Keys.RunsUnreadable(ctx)
		return err
	})
	return u, err
}

// ResetSecrets deletes what keys cannot open from the inventory of a server that
// is stopped, makes keys those of the inventory, and returns what was deleted.
func ResetSecrets(ctx context.Context, cfg config.Config, keys *keyring.Ring) (deleted []string, err error) {
	err = withStore(ctx, cfg, keys, func(s *sqlite.Store) error {
		deleted, err = s.Keys.ResetSecrets(ctx, "admin")
		return err
	})
	return deleted, err
}

// withStore opens the inventory of a server that is stopped.
func withStore(
	ctx context.Context, cfg config.Config, keys *keyring.Ring, do func(*sqlite.Store) error,
) (err error) {
	s, err := sqlite.Open(ctx, InventoryFile(cfg), keys.Sealer())
	if err != nil {
		return fmt.Errorf("opening the inventory: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return do(s)
}
