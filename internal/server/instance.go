package server

import (
	"context"
	"net/http"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/siterole"
)

// The server is the [siterole.Instance] of its host.

// Store is the inventory.
func (s *server) Store() siterole.Store {
	store := s.records.store
	return movedStore{store.HandOvers, store.Images, store.Keys}
}

// Metadata answers machines; nil when no interface is configured.
func (s *server) Metadata() http.Handler {
	if !s.netboot.on() {
		return nil
	}
	return s.netboot.metadata.Handler()
}

// OpenRuns are the runs of machines that have not ended.
func (s *server) OpenRuns(ctx context.Context) ([]string, error) { return s.do.OpenRuns(ctx) }

// BusyActivities are the activities under way.
func (s *server) BusyActivities() []string { return s.temporal.underWay.Effects() }

// RotateKeys replaces the keys of the inventory's secrets.
func (s *server) RotateKeys(ctx context.Context) (int, error) {
	return s.secrets.rotate(ctx, s.records.store.Keys)
}

// CopyDatabases adds both databases to an archive; see [siterole.Instance].
func (s *server) CopyDatabases(ctx context.Context, d *backup.Draft, dir string) (ended func() error, err error) {
	err = s.backups.addTemporal(ctx, d, dir)
	done := make(chan error, 1)
	go func() { done <- s.stopChild() }()
	ended = func() error { return <-done }
	if err != nil {
		return ended, err
	}
	if err := s.backups.addInventory(ctx, d, dir); err != nil {
		return ended, err
	}

	return ended, s.records.store.Close()
}
