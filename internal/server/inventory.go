package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// checkAtStart is the size in bytes up to which the whole inventory is checked before the server answers anything. A
// larger inventory is checked while the server works.
const checkAtStart = 128 << 20

// InventoryFile returns the path of the inventory's database.
func InventoryFile(cfg config.Config) string { return backup.InventoryFile(cfg) }

// adviseRestore adds to err the advice to restore a backup.
func adviseRestore(cfg config.Config, err error) error {
	return human.Advise(err, "move "+cfg.DataDir+" away, then run ingot restore FILE (images may stay; see docs/backup.md)")
}

// inventoryCheck is the result of the last check of the whole inventory.
type inventoryCheck struct {
	result atomic.Pointer[apitypes.InventoryStatus] // nil = not finished yet
	size   int64                                    // size of the inventory at the start in bytes
}

func (c *inventoryCheck) set(err error) {
	st := apitypes.InventoryStatus{Checked: time.Now()}
	if err != nil {
		st.Error = err.Error()
	}
	c.result.Store(&st)
}

func (c *inventoryCheck) status() (st apitypes.InventoryStatus) {
	if last := c.result.Load(); last != nil {
		st = *last
	}
	return st
}

// checkLimit limits a check while the server works: the check holds a read transaction, during which the write-ahead log
// only grows.
const checkLimit = 5 * time.Minute

// ErrUnchecked is the error of a check that has exceeded its time limit.
var ErrUnchecked = errors.New("the check did not finish; run ingot backup, which checks a copy")

// checkWithin runs sqlite.Check, and returns ErrUnchecked if the check exceeds limit.
func checkWithin(ctx context.Context, limit time.Duration, file string) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := sqlite.Check(within, file)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("checking the inventory %q within %s: %w", file, limit, ErrUnchecked)
	}
	return err
}

// CheckInventory reads the whole inventory, which a server may have open. It returns ErrUnchecked after checkLimit.
func CheckInventory(ctx context.Context, cfg config.Config) error {
	return checkWithin(ctx, checkLimit, InventoryFile(cfg))
}

// checkFile returns an error if the inventory is damaged. It leaves an inventory larger than checkAtStart to checkLarge.
func (r *records) checkFile(ctx context.Context) error {
	file := InventoryFile(r.cfg)
	st, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		r.checked.set(nil)
		return nil
	}
	if err != nil {
		return err
	}
	if r.checked.size = st.Size(); r.checked.size > checkAtStart {
		return nil
	}
	err = sqlite.Check(ctx, file)
	r.checked.set(err)
	return err
}

// checkLarge checks an inventory that is larger than checkAtStart. The server continues even if it is damaged, and shows
// the error in its status.
func (r *records) checkLarge(ctx context.Context) error {
	if r.checked.size <= checkAtStart {
		return nil
	}

	err := checkWithin(ctx, checkLimit, InventoryFile(r.cfg))
	if ctx.Err() != nil {
		return nil
	}
	r.checked.set(err)
	switch {
	case errors.Is(err, ErrUnchecked):
		r.log.Warn("the check of the inventory did not finish", "error", err)
	case err != nil:
		r.log.Error("the check of the inventory failed", "error", err)
	}

	return nil
}

// refuseLost returns an error if the inventory has never had a run, but the embedded Temporal has runs. Such an inventory is a new one in
// the place of a lost one, and does not know the machines.
func (r *records) refuseLost(ctx context.Context) error {
	fresh, err := r.store.NeverRan(ctx)
	if err != nil || !fresh || r.cfg.Temporal.Address != "" {
		return err
	}

	file := backup.TemporalFile(r.cfg)
	n, err := temporalfile.Runs(ctx, file)
	if err != nil || n == 0 {
		return err
	}

	return fmt.Errorf("the inventory %s is empty, but Temporal's database in %s has %s of this site "+
		"(to begin a new site, move Temporal's directory away, too): %w",
		InventoryFile(r.cfg), filepath.Dir(file), human.Count(n, "run"), inventory.ErrConflict)
}
