package temporalchild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// errNoChild means that no server is running that could make a backup.
var errNoChild = errors.New("the Temporal server is not running")

// Backup makes the child copy its database to a new file while the child serves. The child writes id into the copy and compares the copy
// with the database. Backup fails if the child or ctx ends before the copy is done.
func (s *Supervisor) Backup(ctx context.Context, file, id string) error {
	err := errNoChild
	if c := s.State().child; c != nil {
		err = c.makeBackup(ctx, BackupOrder{File: file, ID: id})
	}
	if err != nil {
		return fmt.Errorf("backing up Temporal to %q: %w", file, err)
	}
	return nil
}

func (c *child) makeBackup(ctx context.Context, o BackupOrder) error {
	done, err := c.orderBackup(o)
	if err != nil {
		return err
	}
	defer c.answer(BackupDone{ID: o.ID}) // removes the entry if no response came

	select {
	case d := <-done:
		if d.Error != "" {
			return errors.New(d.Error)
		}
		return nil
	case <-c.silent:
		return errors.New("the Temporal server ended during the backup")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// orderBackup sends the order and returns the channel that receives its result.
func (c *child) orderBackup(o BackupOrder) (<-chan BackupDone, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[o.ID] != nil {
		return nil, fmt.Errorf("backup %q is already in progress", o.ID)
	}
	if err := json.NewEncoder(c.stdin).Encode(Order{Backup: &o}); err != nil {
		return nil, err
	}

	done := make(chan BackupDone, 1)
	c.waiting[o.ID] = done
	return done, nil
}

// answer passes the child's response to the backup that waits for it. If none waits, answer does nothing.
func (c *child) answer(d BackupDone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := c.waiting[d.ID]; done != nil {
		done <- d
		delete(c.waiting, d.ID)
	}
}
