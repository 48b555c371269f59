package sqlite

import (
	"context"
	"time"
)

// BMCKeys are the public keys by which the server recognizes BMCs.
type BMCKeys struct{ *db }

// KnownBMCKey returns the fingerprint of the key that is stored for the BMC at address (see inventory.BMC.KeyAddress). If no key is stored
// yet, KnownBMCKey stores the given fingerprint and returns it.
func (s BMCKeys) KnownBMCKey(ctx context.Context, address, fingerprint string) (known string, err error) {
	err = s.write(ctx, "storing the key of a BMC", func(tx *transaction) error {
		if err := do(ctx, tx, "INSERT INTO bmc_key (address, key, first) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
			address, fingerprint, nanos(time.Now())); err != nil {
			return err
		}
		return tx.GetContext(ctx, &known, "SELECT key FROM bmc_key WHERE address = ?", address)
	})
	return known, err
}

// HasBMCKey reports whether a key is stored for the BMC at address.
func (s BMCKeys) HasBMCKey(ctx context.Context, address string) (bool, error) {
	known, err := scalar[bool](ctx, s.ro, "SELECT count(*) > 0 FROM bmc_key WHERE address = ?", address)
	return known, wrap(err, "checking whether the key of a BMC is stored")
}

// ForgetBMCKey deletes the stored key of the BMC at address, so that the next key is accepted. If no key is stored, it returns nil.
func (s BMCKeys) ForgetBMCKey(ctx context.Context, address string) error {
	return s.writeOne(ctx, "deleting the key of a BMC", "DELETE FROM bmc_key WHERE address = ?", address)
}
