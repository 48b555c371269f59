package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// checkAtStart is the size, bytes, up to which the whole inventory is read before
// anything is served. A larger one is checked while the server works.
const checkAtStart = 128 << 20

// InventoryFile is the database of the inventory.
func InventoryFile(cfg config.Config) string { return backup.InventoryFile(cfg) }

// adviseRestore adds to err the remedy for an inventory that only a backup can replace.
func adviseRestore(cfg config.Config, err error) error {
	return human.Advise(err, "move "+cfg.DataDir+" away, then: ingot restore FILE (images may stay; docs/backup.md)")
}

// inventoryCheck is the result of the last check of the whole inventory.
type inventoryCheck struct {
	mu   sync.Mutex
	at   time.Time // zero: it is under way
	err  error
	size int64
}

func (c *inventoryCheck) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.err = time.Now(), err
}

func (c *inventoryCheck) status() api.InventoryStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := api.InventoryStatus{Checked: c.at}
	if c.err != nil {
		st.Error = c.err.Error()
	}
	return st
}

// checkLimit bounds a check while a server works. The check reads one state of the
// database, and everything written during it stays in the write-ahead log.
const checkLimit = 5 * time.Minute

// ErrUnchecked is the error of a check that did not end in time.
var ErrUnchecked = errors.New("the inventory was not checked to its end; a backup checks a copy of it: ingot backup")

// checkWithin is sqlite.Check with a time limit, then ErrUnchecked.
func checkWithin(ctx context.Context, limit time.Duration, file string) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := sqlite.Check(within, file)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("checking the inventory %q within %s: %w", file, limit, ErrUnchecked)
	}
	return err
}

// CheckInventory reads the whole inventory, whether or not a server has it open,
// for at most five minutes: ErrUnchecked after that.
func CheckInventory(ctx context.Context, cfg config.Config) error {
	return checkWithin(ctx, checkLimit, InventoryFile(cfg))
}

// checkFile refuses a damaged inventory before it is opened, unless it is large.
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

// checkLarge checks an inventory that checkFile has left out. The server goes on after
// damage: what can be read is served, and the status shows the error.
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
		r.log.Warn("the inventory was not checked to its end", "error", err)
	case err != nil:
		r.log.Error("the inventory cannot be trusted", "error", err)
	}

	return nil
}

// refuseLost refuses an inventory without runs next to a Temporal that has some: it has
// replaced a lost one, whose machines it does not know.
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

	return fmt.Errorf("the inventory %s is empty, and Temporal in %s has %s of this site "+
		"(to begin a new site, move that directory away, too): %w",
		InventoryFile(r.cfg), filepath.Dir(file), human.Count(n, "run"), inventory.ErrConflict)
}
