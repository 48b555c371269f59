package temporalfile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Runs returns the number of runs, including finished ones, in a database that no server has open. If there is no file, it
// returns 0.
func Runs(ctx context.Context, path string) (n int, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}

	err = Use("file:"+path+"?mode=ro", func(db *sql.DB) error {
		var tables int
		err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master
			WHERE name IN ('current_executions', 'namespaces')`).Scan(&tables)
		if err != nil || tables < 2 {
			return err // a server has not created the tables yet
		}
		return db.QueryRowContext(ctx, `SELECT count(*) FROM current_executions c JOIN namespaces n ON n.id = c.namespace_id
			WHERE n.name <> 'temporal-system'`).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("counting the runs in %q: %w", path, err)
	}

	return n, nil
}
