package siterole

import (
	"context"
	"net/http"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/inventory"
)

// Instance is the site while this host runs it.
type Instance interface {
	// Run serves until ctx ends, or until a hand-over has ended.
	Run(ctx context.Context) error
	Close() error
	Store() Store
	// Metadata returns the handler of the metadata server, or nil if no interface is
	// configured.
	Metadata() http.Handler
	// OpenRuns returns the runs of machines that have not ended.
	OpenRuns(ctx context.Context) ([]string, error)
	// BusyActivities returns the running activities.
	BusyActivities() []string
	RotateKeys(ctx context.Context) (int, error)
	// CopyDatabases adds copies of both databases, made in dir, to an archive. It stops
	// Temporal after its copy and closes the inventory. Both are closed when ended has
	// returned; after an error, ended waits for Temporal alone.
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
