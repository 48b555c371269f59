package temporalfile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// TakeBackup copies the database file while a server uses it, and writes o.ID into the copy.
func TakeBackup(ctx context.Context, file string, o temporalchild.BackupOrder) error {
	if err := dbcopy.Make(ctx, OpenAgain, OpenAgain, file, o.File); err != nil {
		return err
	}

	err := Use("file:"+o.File+"?mode=rw&_pragma=synchronous=full", func(db *sql.DB) error {
		// The copy must be a single file, whatever the settings of the original, and contain no id of another backup.
		err := ExecAll(ctx, db, "PRAGMA journal_mode = DELETE", "DROP TABLE IF EXISTS "+backupTable,
			"CREATE TABLE "+backupTable+" (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, taken_at TEXT NOT NULL)")
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "INSERT INTO "+backupTable+" VALUES (1, ?, ?)", o.ID, time.Now().UTC().Format(time.RFC3339))
		return err
	})
	if err != nil {
		err = errors.Join(err, os.Remove(o.File))
	}
	return err
}

// backupTable is the table with the id of the backup. This table exists only in a backup, not in the live database.
const backupTable = "ingot_backup"

// An OpenRun is a run that was open when the copy was made.
type OpenRun struct {
	Workflow string // id of the workflow
	Run      string
}

// A Copy describes a backup's copy of the database.
type Copy struct {
	dbcopy.Copy
	Open []OpenRun
}

// ReadCopy reads and verifies a copy that no process has open. It returns an error if the copy is damaged. If the copy is not Ingot's or
// has a newer schema, the error is a *[temporalchild.Failure].
func ReadCopy(ctx context.Context, path string) (c Copy, err error) {
	err = Use("file:"+path+"?mode=ro&immutable=1", func(db *sql.DB) error {
		if c.Schema, err = CheckStamp(ctx, db, path); err != nil {
			return err
		}
		if c.Schema == 0 {
			return errors.New("the database has no tables")
		}
		if c.Tables, err = dbcopy.Sound(ctx, db); err != nil {
			return err
		}
		if err := db.QueryRowContext(ctx, "SELECT cluster_id FROM ingot_identity").Scan(&c.Cluster); err != nil {
			return fmt.Errorf("reading the cluster identity: %w", err)
		}
		if _, stamped := c.Tables[backupTable]; stamped {
			if err := db.QueryRowContext(ctx, "SELECT id FROM "+backupTable).Scan(&c.ID); err != nil {
				return fmt.Errorf("reading the backup's id: %w", err)
			}
		}
		c.Open, err = openRuns(ctx, db)
		return err
	})
	if err != nil {
		return Copy{}, fmt.Errorf("reading the copy %q of Temporal's database: %w", path, err)
	}

	return c, nil
}

// openRuns returns the open runs. It reads the server's table of runs, because the visibility table is written later. State 3 means
// completed.
func openRuns(ctx context.Context, db *sql.DB) ([]OpenRun, error) {
	scan := func(rows *sql.Rows) (OpenRun, error) {
		var id string
		var run []byte
		if err := rows.Scan(&id, &run); err != nil {
			return OpenRun{}, err
		}
		if len(run) != 16 {
			return OpenRun{}, fmt.Errorf("the run id of workflow %q has %d bytes instead of 16", id, len(run))
		}
		return OpenRun{id, fmt.Sprintf("%x-%x-%x-%x-%x", run[:4], run[4:6], run[6:8], run[8:10], run[10:])}, nil
	}

	return dbcopy.ReadRows(ctx, db, scan, `SELECT c.workflow_id, c.run_id
		FROM current_executions c JOIN namespaces n ON n.id = c.namespace_id
		WHERE c.state < 3 AND n.name <> 'temporal-system' ORDER BY c.workflow_id`)
}

// Adopt turns a copy that no process has open into a database for the server.
func Adopt(ctx context.Context, path string) error {
	err := Use("file:"+path+"?mode=rw&_pragma=synchronous=full", func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "DROP TABLE "+backupTable)
		return err
	})
	if err != nil {
		return fmt.Errorf("adopting the copy %q of Temporal's database: %w", path, err)
	}
	return nil
}
