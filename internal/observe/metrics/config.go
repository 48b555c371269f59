package metrics

import (
	"context"
	"database/sql"
	"time"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/inventory"
)

// Store is the part of the inventory that metrics read.
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

// Disk holds the free space of a disk and its required minimum, in bytes.
type Disk struct {
	Name          string
	Free, MinFree int64
}

// Temporal is the state of the connection to Temporal.
type Temporal struct {
	Up       bool
	Embedded bool
	Restarts int // restarts of the embedded server
}

// Config holds the sources of the metrics. The comments name those that may be nil: their metrics are then left out.
type Config struct {
	Version string
	Store   Store
	// LastEvent is the number of the newest event when the server started. Phases that end after it are counted.
	LastEvent int64

	Repairs  func() apitypes.Repairs
	Agents   func() engine.AgentCounts
	Retrying func() int
	Panics   func() int64
	Temporal func() Temporal
	// Boot returns the counters of the boot server. OtherDHCP returns how many other DHCP servers were seen. Both may be nil.
	Boot      func() bootsvc.Stats
	OtherDHCP func() int
	// Requests returns the counters of the other listeners, by the name of the listener.
	Requests map[string]func() httpserve.RequestCounts
	// Databases holds the file of each database, by the database's name.
	Databases map[string]string
	// Intact returns the result of the last check of the inventory; done is false until the first check has ended.
	Intact func() (intact, done bool)
	Disks  func() ([]Disk, error)
	// LastBackup returns when the newest verified backup was made that the server has stored, or zero if there is none. It may be nil.
	LastBackup func() time.Time
	// ReserveHeld reports whether the reserved disk space is still reserved, that is, not in use. It may be nil.
	ReserveHeld func() bool
	// Synchronized reports whether the clock of this host is synchronized.
	Synchronized func() (bool, error)
	// Certificates returns when each certificate of this server expires, by the name of the listener.
	Certificates func() map[string]time.Time
	// Traces returns how many spans were sent and dropped. It may be nil.
	Traces func() tracing.Counts
}
