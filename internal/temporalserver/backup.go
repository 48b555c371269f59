package temporalserver

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/dbcopy"
	"github.com/ingotmetal/ingot/internal/temporalchild"
)

// child is the server's process, as its parent sees it.
type child struct {
	cfg    temporalchild.Config
	stdin  io.Reader
	orders *json.Decoder // reads stdin
	logger *slog.Logger

	mu      sync.Mutex
	reports io.Writer // the pipe to the parent, on which whole lines are written
}

func (c *child) report(r temporalchild.Report) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return temporalchild.WriteReport(c.reports, r)
}

// carryOutOrders carries out what the parent orders until the pipe ends. Each order has its own goroutine, so that the end
// of the pipe is noticed at once.
func (c *child) carryOutOrders(ctx context.Context) {
	for {
		var o temporalchild.Order
		if err := c.orders.Decode(&o); err != nil {
			if !errors.Is(err, io.EOF) {
				c.logger.Warn("an order of the parent cannot be read", "err", err)
				_, _ = io.Copy(io.Discard, c.stdin) // the end of the pipe still counts
			}
			return
		}
		if o.Backup == nil {
			continue
		}
		go func() {
			done := temporalchild.BackupDone{ID: o.Backup.ID}
			if err := takeBackup(ctx, c.cfg.File, *o.Backup); err != nil {
				done.Error = describeFullDisk(err, o.Backup.File).Error()
			}
			if err := c.report(temporalchild.Report{Backup: &done}); err != nil {
				c.logger.Warn("a backup cannot be answered", "err", err)
			}
		}()
	}
}

// takeBackup copies the database while the server works, and writes the id of the backup into the copy.
func takeBackup(ctx context.Context, file string, o temporalchild.BackupOrder) error {
	if err := dbcopy.Make(ctx, openAgain, openAgain, file, o.File); err != nil {
		return err
	}

	err := withDatabase("file:"+o.File+"?mode=rw&_pragma=synchronous=full", func(db *sql.DB) error {
		// These leave one file without other backups' ids, whatever the original was.
		err := execAll(ctx, db, "PRAGMA journal_mode = DELETE", "DROP TABLE IF EXISTS "+backupTable,
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

// openAgain opens a database that is open already, or a copy of it.
func openAgain(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=busy_timeout=10000")
}

// backupTable holds the id of the backup, in copies only.
const backupTable = "ingot_backup"

// An OpenRun is a run that was open when the copy was made.
type OpenRun struct {
	Workflow string // id
	Run      string
}

// A Copy is the content of a backup's copy of the database.
type Copy struct {
	dbcopy.Copy
	Open []OpenRun
}

// ReadCopy reads a copy that no process has open. A damaged copy, a database that is not Ingot's, or a newer schema is an
// error; the last two are a *[temporalchild.Failure].
func ReadCopy(ctx context.Context, path string) (c Copy, err error) {
	err = withDatabase("file:"+path+"?mode=ro&immutable=1", func(db *sql.DB) error {
		if c.Schema, err = checkStamp(ctx, db, path); err != nil {
			return err
		}
		if c.Schema == 0 {
			return errors.New("it is empty")
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
		return Copy{}, fmt.Errorf("reading Temporal's copy %q: %w", path, err)
	}

	return c, nil
}

// openRuns reads the server's own table of runs and not visibility, which is written a moment later. State 3 is
// "completed".
func openRuns(ctx context.Context, db *sql.DB) ([]OpenRun, error) {
	scan := func(rows *sql.Rows) (OpenRun, error) {
		var id string
		var run []byte
		if err := rows.Scan(&id, &run); err != nil {
			return OpenRun{}, err
		}
		if len(run) != 16 {
			return OpenRun{}, fmt.Errorf("the run of %q has an id of %d bytes", id, len(run))
		}
		return OpenRun{id, fmt.Sprintf("%x-%x-%x-%x-%x", run[:4], run[4:6], run[6:8], run[8:10], run[10:])}, nil
	}

	return dbcopy.ReadRows(ctx, db, scan, `SELECT c.workflow_id, c.run_id
		FROM current_executions c JOIN namespaces n ON n.id = c.namespace_id
		WHERE c.state < 3 AND n.name <> 'temporal-system' ORDER BY c.workflow_id`)
}

// Adopt turns a copy that no process has open into a database of the server.
func Adopt(ctx context.Context, path string) error {
	err := withDatabase("file:"+path+"?mode=rw&_pragma=synchronous=full", func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "DROP TABLE "+backupTable)
		return err
	})
	if err != nil {
		return fmt.Errorf("adopting Temporal's copy %q: %w", path, err)
	}
	return nil
}
