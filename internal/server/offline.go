package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// ErrDamaged means that the inventory is damaged and must be restored from a backup.
var ErrDamaged = sqlite.ErrDamaged

// Unreadable lists what the keys in a key file cannot open.
type Unreadable struct {
	Secrets []string // must be entered again
	Runs    []string // would lose their plans
}

// ListUnreadable reads the inventory of a stopped server, and lists the secrets and plans that cannot be decrypted with the
// given keys. Without keys, it lists all of them.
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

// ResetSecrets makes the given keys the keys of a stopped server's inventory. It deletes all values there that cannot be decrypted with
// these keys, and returns the names of the deleted secrets.
func ResetSecrets(ctx context.Context, cfg config.Config, keys *keyring.Ring) (deleted []string, err error) {
	err = withStore(ctx, cfg, keys, func(s *sqlite.Store) error {
		deleted, err = s.Keys.ResetSecrets(ctx, "admin")
		return err
	})
	return deleted, err
}

// withStore opens the inventory of a stopped server, calls do, and closes the inventory.
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
