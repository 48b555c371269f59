package metrics

import (
	"context"
	"database/sql"
	"time"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/inventory"
)

// Store is what is read from the inventory.
type Store interface {
	MachineCount(ctx context.Context) (int, error)
	Standings(ctx context.Context) (map[string]int, error)
	Images(ctx context.Context) ([]inventory.Image, error)
	OpenWork(ctx context.Context) ([]inventory.OpenWork, error)
	OpenWindows(ctx context.Context) ([]inventory.OpenWindow, error)
	PhaseEnds(ctx context.Context, after int64) (ends []inventory.PhaseEnd, last int64, err error)
	Notices(ctx context.Context) (inventory.NoticeCounts, error)
	Pools() (read, write sql.DBStats)
}

// Disk is the room on a disk, in bytes.
type Disk struct {
	Name          string
	Free, MinFree int64
}

// Temporal is the state of the connection to Temporal.
type Temporal struct {
	Up       bool
	Embedded bool
	Restarts int // of the embedded server
}

// Config says where the metrics are read. Store and LastEvent are required. What is nil is not shown.
type Config struct {
	Version string
	Store   Store
	// LastEvent is the newest event when the server started: phases that end later are counted.
	LastEvent int64

	Repairs  func() engine.Counts
	Agents   func() engine.AgentCounts
	Retrying func() int
	Panics   func() int64
	Temporal func() Temporal
	// Boot are the counters of the boot server, and OtherDHCP the number of other DHCP servers.
	Boot      func() bootsvc.Stats
	OtherDHCP func() int
	// Requests are the counters of the other listeners, by name.
	Requests map[string]func() httpserve.RequestCounts
	// Databases are the files of databases, by name.
	Databases map[string]string
	// Intact returns the result of the last check of the inventory; done is false while it runs.
	Intact func() (intact, done bool)
	Disks  func() ([]Disk, error)
	// ReserveHeld: the reserve of disk space exists and is not in use.
	ReserveHeld func() bool
	// Synchronized reports whether the clock of this host is.
	Synchronized func() (bool, error)
	// Certificates returns when those that this server shows expire, by name.
	Certificates func() map[string]time.Time
	// Traces are the spans that were sent and dropped.
	Traces func() tracing.Counts
}
