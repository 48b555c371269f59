package sqlite

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PutFact encrypts and stores a fact, which is a result of an operation. It replaces the stored fact with the same operation and name.
// operation is the id of the operation's workflow.
func (s Genesis) PutFact(ctx context.Context, operation, name string, value inventory.Secret) error {
	key := factKey(operation, name)
	return s.write(ctx, fmt.Sprintf("storing %q", key), func(tx *transaction) error {
		return putFact(ctx, tx, key, value)
	})
}

func putFact(ctx context.Context, tx *transaction, key string, value inventory.Secret) error {
	sealed, err := tx.db.seal(sealPlan, runBinding(key), []byte(value.Reveal()))
	if err != nil {
		return err
	}
	return do(ctx, tx, "INSERT OR REPLACE INTO fact (run, sealed) VALUES (?, ?)", key, sealed)
}

// Fact returns the fact of an operation with this name, or inventory.ErrNotFound.
func (s Genesis) Fact(ctx context.Context, operation, name string) (inventory.Secret, error) {
	return s.fact(ctx, s.ro, factKey(operation, name))
}

func (s Genesis) fact(ctx context.Context, q sqlx.QueryerContext, key string) (inventory.Secret, error) {
	sealed, err := scalar[[]byte](ctx, q, "SELECT sealed FROM fact WHERE run = ? AND length(sealed) > 0", key)
	var plain []byte
	if err == nil {
		plain, err = s.open(sealPlan, runBinding(key), sealed)
	}
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("reading %q: %w", key, err)
	}
	return inventory.NewSecret(string(plain)), nil
}

func factKey(operation, name string) string { return operation + "#" + name }
