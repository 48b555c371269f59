package temporalchild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// errNoChild is the error of a backup without a server that could make it.
var errNoChild = errors.New("the Temporal server is not running")

// Backup has the child copy its database to a new file while it serves, and compare the copy, in which id is written. It
// waits until ctx ends.
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
	defer c.answer(BackupDone{ID: o.ID}) // removes the entry if it is still there

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

// orderBackup sends the order and returns the channel on which its answer comes.
func (c *child) orderBackup(o BackupOrder) (<-chan BackupDone, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[o.ID] != nil {
		return nil, fmt.Errorf("backup %q is being made already", o.ID)
	}
	if err := json.NewEncoder(c.stdin).Encode(Order{Backup: &o}); err != nil {
		return nil, err
	}

	done := make(chan BackupDone, 1)
	c.waiting[o.ID] = done
	return done, nil
}

// answer passes the child's answer to the backup that waits for it.
func (c *child) answer(d BackupDone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := c.waiting[d.ID]; done != nil {
		done <- d
		delete(c.waiting, d.ID)
	}
}
