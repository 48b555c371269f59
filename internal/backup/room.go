package backup

import (
	"fmt"
	"path/filepath"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// InventoryFile returns the path of the inventory's database.
func InventoryFile(cfg config.Config) string { return filepath.Join(cfg.DataDir, "ingot.db") }

// TemporalFile returns the path of the embedded Temporal's database.
func TemporalFile(cfg config.Config) string {
	return temporalchild.DefaultConfig(filepath.Join(cfg.DataDir, "temporal")).File
}

// DatabaseSize returns the size of both databases of a site in bytes.
func DatabaseSize(cfg config.Config) (size int64, err error) {
	for _, db := range []string{InventoryFile(cfg), TemporalFile(cfg)} {
		for _, file := range []string{db, db + "-wal"} {
			n, err := durablefile.Size(file)
			if err != nil {
				return 0, err
			}
			size += n
		}
	}

	return size, nil
}

// RequireRoom returns inventory.ErrFull if the copies of a backup would take disk space that running workflows need.
func RequireRoom(cfg config.Config) error {
	size, err := DatabaseSize(cfg)
	if err != nil {
		return err
	}

	return requireFree(cfg.DataDir, size+cfg.MinFree<<20)
}

// requireFree returns inventory.ErrFull if fewer than need bytes are free in dir.
func requireFree(dir string, need int64) error {
	free, err := diskreserve.Free(dir)
	if err == nil && free < need {
		err = fmt.Errorf("making a backup needs %s of free space in %s, but only %s are free: %w",
			human.Size(need), dir, human.Size(free), inventory.ErrFull)
	}
	return err
}
