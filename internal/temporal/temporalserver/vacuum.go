package temporalserver

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/common/resolver"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// vacuumEvery is how often pages of deleted runs are returned to the file system. vacuumPages is how many are returned at once: 4 MiB,
// so that signals are not delayed noticeably.
const (
	vacuumEvery = time.Minute
	vacuumPages = 1024
)

// openForVacuum returns a reference to the server's own connection. With a second connection, the server's transactions would fail with
// "database is locked".
func openForVacuum(cfg temporalchild.Config) (sqlplugin.AdminDB, error) {
	db, err := sql.NewSQLAdminDB(sqlplugin.DbKindUnknown, sqlConfig(cfg), resolver.NewNoopResolver(),
		log.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		return nil, fmt.Errorf("opening the database to vacuum it: %w", err)
	}

	return db, nil
}

// vacuum returns the pages of deleted runs to the file system until ctx ends.
func (e *embedded) vacuum(ctx context.Context, db sqlplugin.AdminDB) {
	for clock.Sleep(ctx, cmp.Or(e.cfg.VacuumEvery, vacuumEvery)) == nil {
		// If there are no free pages, this reads only one page.
		if err := db.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages)); err != nil {
			e.logger.Warn("returning the disk space of deleted runs", "err", err)
		}
	}
}
