package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jmoiron/sqlx"
	"github.com/mattn/go-sqlite3"
)

// ErrDamaged means that SQLite cannot read the database file. The operator has to restore a backup.
var ErrDamaged = errors.New("the database is damaged: restore a backup with ingot restore")

// Check reads the whole database at path and checks its structure (PRAGMA quick_check). Other processes may have the database open. If the
// database is damaged, the error is ErrDamaged. If the file is missing, it is fs.ErrNotExist.
func Check(ctx context.Context, path string) error {
	if err := check(ctx, path); err != nil {
		return fmt.Errorf("checking the inventory %q: %w", path, asDamaged(err))
	}
	return nil
}

func check(ctx context.Context, path string) (err error) {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	db, err := sqlx.Open("sqlite3", dsn(path, "_busy_timeout=10000&_query_only=on"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var verdict string
	if err := db.GetContext(ctx, &verdict, "PRAGMA quick_check(1)"); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", ErrDamaged, verdict)
	}
	return nil
}

// asDamaged wraps err in ErrDamaged if err is the driver's error for a damaged database. It returns any other error unchanged.
func asDamaged(err error) error {
	if e, ok := errors.AsType[sqlite3.Error](err); ok && (e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
