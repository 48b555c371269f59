package server

import (
	"context"
	"net/http"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/siterole"
)

// The server is the [siterole.Instance] of its host.

// Store returns the part of the inventory that a hand-over needs.
func (s *server) Store() siterole.Store {
	store := s.records.store
	return movedStore{store.HandOvers, store.Images, store.Keys}
}

// Metadata returns the handler of the metadata server, or nil if netboot is off in the configuration.
func (s *server) Metadata() http.Handler {
	if !s.netboot.on() {
		return nil
	}
	return s.netboot.metadata.Handler()
}

// OpenRuns returns the names of machines with an open run, for operators. The last entry may instead say how many more there are.
func (s *server) OpenRuns(ctx context.Context) ([]string, error) { return s.do.OpenRuns(ctx) }

// BusyActivities returns the types of the running activities that have side effects, sorted.
func (s *server) BusyActivities() []string { return s.temporal.underWay.Effects() }

// RotateKeys replaces the keys of the inventory's secrets, and returns how many secrets it has sealed again.
func (s *server) RotateKeys(ctx context.Context) (int, error) {
	return s.secrets.rotate(ctx, s.records.store.Keys)
}

// CopyDatabases adds copies of both databases to d; see [siterole.Instance].
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
