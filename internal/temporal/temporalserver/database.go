package temporalserver

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
)

// failoverVersionIncrement is the difference between two successive failover versions of one cluster. The remainder of a version, divided
// by it, identifies the cluster. It must be the same for all sites, or two sites could never be connected.
const failoverVersionIncrement = 1_000_000

// identity identifies this Temporal cluster. It is created together with the file and stored there, so that a copy of the file continues as
// the same cluster.
type identity struct {
	ClusterName     string
	ClusterID       string
	FailoverVersion int64
}

func newIdentity() identity {
	// rand.Read never fails: it crashes the process instead.
	var id [16]byte
	_, _ = rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // RFC 9562, version 4; the server requires a UUID
	var version [8]byte
	_, _ = rand.Read(version[:])
	return identity{
		ClusterName:     fmt.Sprintf("ingot-%x", id[:4]),
		ClusterID:       fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
		FailoverVersion: 1 + int64(binary.BigEndian.Uint64(version[:])%(failoverVersionIncrement-1)),
	}
}

// prepareDatabase creates the schema in a new file, migrates an older file, and refuses a newer or foreign one. It returns the
// file's identity. It closes its connections before the server opens its own.
func prepareDatabase(
	ctx context.Context, cfg temporalchild.Config, logger *slog.Logger, busy func(with string),
) (identity, error) {
	// Read the stamp first, without the other pragmas: they would change the file.
	var stamp int
	err := temporalfile.Use(dsn(cfg, "busy_timeout"), func(db *sql.DB) error {
		var err error
		stamp, err = temporalfile.CheckStamp(ctx, db, cfg.File)
		return err
	})
	if err == nil && stamp != 0 && stamp != temporalfile.SchemaStamp {
		busy(fmt.Sprintf("migrating %s from schema %d to %d", cfg.File, stamp, temporalfile.SchemaStamp))
		err = migrateDatabase(ctx, cfg, stamp, logger)
		busy("")
	}
	if err != nil {
		return identity{}, fmt.Errorf("opening %q: %w", cfg.File, err)
	}

	var id identity
	err = temporalfile.Use(dsn(cfg, "auto_vacuum", "busy_timeout", "journal_mode", "synchronous"), func(db *sql.DB) error {
		if stamp == 0 {
			if err := createSchema(ctx, db); err != nil {
				return fmt.Errorf("making the schema: %w", err)
			}
		}
		err := db.QueryRowContext(ctx, "SELECT cluster_name, cluster_id, failover_version FROM ingot_identity").
			Scan(&id.ClusterName, &id.ClusterID, &id.FailoverVersion)
		if err != nil {
			return fmt.Errorf("reading the cluster identity: %w", err)
		}
		// Each start returns only a limited number of free pages to the file system, so that no start becomes slow.
		if _, err := db.ExecContext(ctx, "PRAGMA incremental_vacuum(4096)"); err != nil {
			return fmt.Errorf("vacuuming: %w", err)
		}
		return nil
	})
	if err != nil {
		return identity{}, fmt.Errorf("opening %q: %w", cfg.File, err)
	}

	return id, nil
}

// createSchema creates everything in one transaction: if the process is killed, the file is either empty or complete.
func createSchema(ctx context.Context, db *sql.DB) error {
	id := newIdentity()
	return inTransaction(ctx, db, func(tx *sql.Tx) error {
		for _, name := range schemaFiles {
			if err := runScript(ctx, tx, name); err != nil {
				return err
			}
		}

		_, err := tx.ExecContext(ctx, `CREATE TABLE ingot_identity (
			one INTEGER PRIMARY KEY CHECK (one = 1),
			cluster_name TEXT NOT NULL,
			cluster_id TEXT NOT NULL,
			failover_version INTEGER NOT NULL,
			created_at TEXT NOT NULL)`)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO ingot_identity VALUES (1, ?, ?, ?, ?)",
			id.ClusterName, id.ClusterID, id.FailoverVersion, time.Now().UTC().Format(time.RFC3339))
		if err != nil {
			return err
		}
		return temporalfile.WriteStamp(ctx, tx)
	})
}

// createNamespace creates the namespace, with its retention and search attributes, before the server starts, so that no client ever finds
// it missing. An existing namespace is not changed.
func (e *embedded) createNamespace() error {
	cfg := e.cfg
	attributes := map[string]enumspb.IndexedValueType{}
	for _, name := range cfg.SearchAttributes {
		attributes[name] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	}

	ns, err := sqliteschema.NewNamespaceConfig(e.id.ClusterName, cfg.Namespace, false, attributes)
	if err != nil {
		return fmt.Errorf("describing namespace %q: %w", cfg.Namespace, err)
	}

	ns.Detail.Config.Retention = durationpb.New(cfg.Retention)
	if err := sqliteschema.CreateNamespaces(sqlConfig(cfg), ns); err != nil {
		return fmt.Errorf("creating namespace %q: %w", cfg.Namespace, err)
	}
	return nil
}
