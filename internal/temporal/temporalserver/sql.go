package temporalserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"

	"go.temporal.io/server/common/config"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/schema"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
)

// schemaFiles are the scripts that create the schema of temporalfile.SchemaStamp.
var schemaFiles = [...]string{"sqlite/v3/temporal/schema.sql", "sqlite/v3/visibility/schema.sql"}

// maxJournal is the size in bytes to which the write-ahead log is truncated. When the log has more than checkpointEvery pages, its content
// is moved into the database file. No reader delays this move, because only the server reads the file.
const (
	maxJournal      = 8 << 20
	checkpointEvery = 1000
)

// sqlConfig returns the configuration of the database. Attributes that are not URI parameters become pragmas in alphabetical
// order: auto_vacuum must come before the first page of the file is written. synchronous is full because acknowledged
// signals must survive a power failure.
func sqlConfig(cfg temporalchild.Config) *config.SQL {
	return &config.SQL{
		PluginName:   sqliteplugin.PluginName,
		DatabaseName: cfg.File,
		ConnectAttributes: map[string]string{
			"mode":         "rwc",
			"auto_vacuum":  "incremental",
			"busy_timeout": "10000",
			"journal_mode": "wal",
			"synchronous":  "full",
			// The write-ahead log is truncated after its content has been moved into the database file.
			"journal_size_limit": strconv.Itoa(maxJournal),
			"wal_autocheckpoint": strconv.Itoa(checkpointEvery),
			"cache_size":         "-16384", // KiB; with the default of 2 MiB, the same pages are read again and again
		},
		// With several connections, statements would fail with "database is locked", and be slower.
		MaxConns:     1,
		MaxIdleConns: 1,
	}
}

// dsn returns the data source name of the file with the named pragmas of sqlConfig.
func dsn(cfg temporalchild.Config, pragmas ...string) string {
	attributes := sqlConfig(cfg).ConnectAttributes
	q := url.Values{"mode": {attributes["mode"]}}
	for _, name := range pragmas {
		q.Add("_pragma", name+"="+attributes[name])
	}

	return "file:" + cfg.File + "?" + q.Encode()
}

// inTransaction calls change in a transaction. It commits if change returns nil, and otherwise rolls back.
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
