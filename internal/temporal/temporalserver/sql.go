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

// maxJournal is the size in bytes to which the write-ahead log is truncated. checkpointEvery is the
// number of pages after which its content is written into the file. No reader can delay a
// checkpoint, because only the server reads the file.
const (
	maxJournal      = 8 << 20
	checkpointEvery = 1000
)

// sqlConfig returns the configuration of the database. Attributes that are not URI parameters
// become pragmas, in alphabetical order: auto_vacuum must come before the first page of the file is
// written. synchronous=full, because acknowledged signals must survive a power failure.
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
			// The write-ahead log is truncated after its content is in the file.
			"journal_size_limit": strconv.Itoa(maxJournal),
			"wal_autocheckpoint": strconv.Itoa(checkpointEvery),
			"cache_size":         "-16384", // KiB; the default of 2 MiB reads the same pages repeatedly
		},
		// More than one connection gives "database is locked", and is slower.
		MaxConns:     1,
		MaxIdleConns: 1,
	}
}

// dsn returns the data source name of the file, with these of the server's pragmas.
func dsn(cfg temporalchild.Config, pragmas ...string) string {
	attributes := sqlConfig(cfg).ConnectAttributes
	q := url.Values{"mode": {attributes["mode"]}}
	for _, name := range pragmas {
		q.Add("_pragma", name+"="+attributes[name])
	}

	return "file:" + cfg.File + "?" + q.Encode()
}

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
