package temporalserver

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/common/resolver"

	"github.com/ingotmetal/ingot/internal/temporalchild"
)

// vacuumEvery is how often the pages of deleted runs are returned to the file system, and vacuumPages how many at once:
// 4 MiB, so that no signal waits noticeably.
const (
	vacuumEvery = time.Minute
	vacuumPages = 1024
)

// startVacuum returns the pages of deleted runs to the file system while the server runs, and returns the function that ends
// that. It uses the server's own connection: a second one would make the server's transactions fail as locked.
func startVacuum(ctx context.Context, cfg temporalchild.Config, logger *slog.Logger) (func(), error) {
	db, err := sql.NewSQLAdminDB(sqlplugin.DbKindUnknown, sqlConfig(cfg), resolver.NewNoopResolver(),
		log.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		return nil, fmt.Errorf("opening the database to vacuum it: %w", err)
	}

	every := cfg.VacuumEvery
	if every <= 0 {
		every = vacuumEvery
	}

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = db.Close() }() // a reference to the server's connection
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				// Without free pages this reads one page.
				if err := db.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages)); err != nil {
					logger.Warn("the pages of deleted runs could not be returned", "err", err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}, nil
}
