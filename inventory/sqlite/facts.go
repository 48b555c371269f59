package sqlite

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PutFact keeps, sealed, what the operation with this workflow id has found
// out, under a name; what was kept under that name is replaced.
func (s *Store) PutFact(ctx context.Context, operation, name string, value inventory.Secret) error {
	key := factKey(operation, name)
	return s.write(ctx, fmt.Sprintf("keeping %q", key), func(tx *sqlx.Tx) error {
		sealed, err := s.seal(sealPlan, runBinding(key), []byte(value.Reveal()))
		if err != nil {
			return err
		}
		_, err = exec(ctx, tx, "INSERT OR REPLACE INTO fact (run, sealed) VALUES (?, ?)", key, sealed)
		return err
	})
}

// Fact returns what was kept, or inventory.ErrNotFound.
func (s *Store) Fact(ctx context.Context, operation, name string) (inventory.Secret, error) {
	key := factKey(operation, name)
	var sealed []byte
	err := get(ctx, s.ro, &sealed, "SELECT sealed FROM fact WHERE run = ? AND length(sealed) > 0", key)
	if err == nil {
		var plain []byte
		if plain, err = s.open(sealPlan, runBinding(key), sealed); err == nil {
			return inventory.NewSecret(string(plain)), nil
		}
	}
	return inventory.Secret{}, fmt.Errorf("reading %q: %w", key, err)
}

func factKey(operation, name string) string { return operation + "#" + name }
