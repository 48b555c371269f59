package temporalserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"go.temporal.io/server/schema"

	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
)

// inTransaction commits the changes of change unless it returns an error.
func inTransaction(ctx context.Context, db *sql.DB, change func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := change(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}

	return tx.Commit()
}

// runScript runs one of the server's SQL scripts.
func runScript(ctx context.Context, db temporalfile.Database, name string) error {
	script, err := fs.ReadFile(schema.Assets(), name)
	if err != nil {
		return err
	}

	if _, err := db.ExecContext(ctx, string(script)); err != nil {
		return fmt.Errorf("running %q: %w", name, err)
	}
	return nil
}
