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
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporalserver"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// checkAtStart is up to which size, bytes, the inventory is read whole before
// anything is served. A larger one is checked beside the work.
const checkAtStart = 128 << 20

// InventoryFile is the database of the inventory.
func InventoryFile(cfg config.Config) string { return filepath.Join(cfg.DataDir, "ingot.db") }

// restoreInstead is an error of an inventory that only a backup replaces.
func restoreInstead(cfg config.Config, err error) error {
	return human.Advise(err, fmt.Sprintf("move %s away, then: ingot restore FILE (images may stay; docs/backup.md)", cfg.DataDir))
}

// inventoryCheck is what was found when the inventory was read whole last.
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

// checkTime bounds a check beside a server at work. The check reads one state of
// the database, and all that is written meanwhile stays in the write-ahead log.
const checkTime = 5 * time.Minute

// ErrUnchecked is an inventory that was not read to its end in time.
var ErrUnchecked = errors.New("the inventory was not checked to its end; a backup checks a copy of it: ingot backup")

// checkWithin is sqlite.Check for so long, then ErrUnchecked.
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
	return checkWithin(ctx, checkTime, InventoryFile(cfg))
}

// checkFile refuses a damaged inventory before it is opened, unless it is large.
func (s *server) checkFile(ctx context.Context) error {
	file := InventoryFile(s.cfg)
	st, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		s.checked.set(nil)
		return nil
	}
	if err != nil {
		return err
	}
	if s.checked.size = st.Size(); s.checked.size > checkAtStart {
		return nil
	}
	err = sqlite.Check(ctx, file)
	s.checked.set(err)
	return err
}

// checkLarge checks an inventory that checkFile has left out. Damage that it
// finds ends nothing: what can still be read is served, and operators are told.
func (s *server) checkLarge(ctx context.Context) error {
	if s.checked.size <= checkAtStart {
		return nil
	}
	err := checkWithin(ctx, checkTime, InventoryFile(s.cfg))
	if ctx.Err() != nil {
		return nil
	}
	s.checked.set(err)
	switch {
	case errors.Is(err, ErrUnchecked):
		s.log.Warn("the inventory was not checked to its end", "error", err)
	case err != nil:
		s.log.Error("the inventory cannot be trusted", "error", err)
	}
	return nil
}

// refuseLost refuses an inventory that knows of no run beside a Temporal that has
// some: it took the place of one that was lost, and none of its machines would be
// known.
func (s *server) refuseLost(ctx context.Context) error {
	fresh, err := s.store.NeverRan(ctx)
	if err != nil || !fresh || s.cfg.Temporal.Address != "" {
		return err
	}
	at := filepath.Join(s.cfg.DataDir, "temporal")
	n, err := temporalserver.Runs(ctx, temporalchild.DefaultConfig(at).File)
	if err != nil || n == 0 {
		return err
	}
	return fmt.Errorf("the inventory %s is empty, and Temporal in %s has %s of this site (move that directory away, too, to begin a new site): %w",
		InventoryFile(s.cfg), at, human.Count(n, "run"), inventory.ErrConflict)
}
