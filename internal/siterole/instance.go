package siterole

import (
	"context"
	"net/http"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/inventory"
)

// Instance is the inventory, Temporal and the services of the active server.
type Instance interface {
	// Run serves until ctx ends, a service fails, or a hand-over has ended.
	Run(ctx context.Context) error
	Close() error
	Store() Store
	// Metadata returns the handler of the metadata server, or nil if netboot is off.
	Metadata() http.Handler
	// OpenRuns returns the names of machines with an open run, for operators. The last entry may instead say how many more there are.
	OpenRuns(ctx context.Context) ([]string, error)
	// BusyActivities returns the types of the running activities that have side effects, sorted.
	BusyActivities() []string
	RotateKeys(ctx context.Context) (int, error)
	// CopyDatabases copies both databases into dir and adds the copies to d. It closes the inventory, and stops Temporal after Temporal's
	// database is copied. The caller must call ended, also after an error: ended waits until Temporal has ended.
	CopyDatabases(ctx context.Context, d *backup.Draft, dir string) (ended func() error, err error)
}

// Store is the part of the inventory that this package needs.
type Store interface {
	SiteEpoch(ctx context.Context) (int64, error)
	Owned(ctx context.Context, epoch int64) error
	Intake(ctx context.Context) (string, error)
	CloseIntake(ctx context.Context, why string) error
	LastHandOver(ctx context.Context) (inventory.HandOver, error)
	KeyCheck(ctx context.Context) error
	Images(ctx context.Context) ([]inventory.Image, error)
	PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error)
}
