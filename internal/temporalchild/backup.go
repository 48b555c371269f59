package temporalchild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// errNoChild is a backup without a server that could make it.
var errNoChild = errors.New("the Temporal server is not running")

// Backup has the child copy its database to a new file while it serves, and
// verify the copy, in which id stands. It waits for as long as ctx lets it.
func (s *Supervisor) Backup(ctx context.Context, file, id string) error {
	s.mu.Lock()
	c := s.current
	s.mu.Unlock()
	err := errNoChild
	if c != nil {
		err = c.backUp(ctx, BackupOrder{File: file, ID: id})
	}
	if err != nil {
		return fmt.Errorf("backing up Temporal to %q: %w", file, err)
	}
	return nil
}

// working says which child takes orders.
func (s *Supervisor) working(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = c
}

func (c *child) backUp(ctx context.Context, o BackupOrder) error {
	done, err := c.order(o)
	if err != nil {
		return err
	}
	defer c.forget(o.ID)
	select {
	case d := <-done:
		if d.Error != "" {
			return errors.New(d.Error)
		}
		return nil
	case <-c.silent:
		return errors.New("the Temporal server ended meanwhile")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *child) order(o BackupOrder) (<-chan BackupDone, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[o.ID] != nil {
		return nil, fmt.Errorf("backup %q is being made already", o.ID)
	}
	if err := json.NewEncoder(c.stdin).Encode(Order{Backup: &o}); err != nil {
		return nil, err
	}
	if c.waiting == nil {
		c.waiting = map[string]chan BackupDone{}
	}
	done := make(chan BackupDone, 1)
	c.waiting[o.ID] = done
	return done, nil
}

func (c *child) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// answer passes on what the child says of a backup.
func (c *child) answer(d BackupDone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := c.waiting[d.ID]; done != nil {
		done <- d
		delete(c.waiting, d.ID)
	}
}
