package agentapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// AgentStore holds the agents: which claims were redeemed, and the hashes of the tokens.
type AgentStore interface {
	Redeem(ctx context.Context, r inventory.Redemption) (inventory.Agent, error)
	ClaimConflict(ctx context.Context, o inventory.Owner, boot int, message string, facts json.RawMessage) error
	AgentByToken(ctx context.Context, tokenSHA256 []byte) (inventory.Agent, error)
	AgentUsed(ctx context.Context, o inventory.Owner, boot int) error
}

// MachineStore holds machines.
type MachineStore interface {
	Machine(ctx context.Context, name string) (inventory.Machine, error)
}

// GrantStore holds the grants: which run owns a machine.
type GrantStore interface {
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
}

// WorkStore holds the attempts that are assigned to agents, and stores their results.
type WorkStore interface {
	NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error)
	Delivered(ctx context.Context, o inventory.Owner, k action.Key) error
	Stops(ctx context.Context, o inventory.Owner) ([]action.Key, error)
	Report(ctx context.Context, o inventory.Owner, boot int, r action.Result) (fresh bool, err error)
}

// ChangeStore notifies its watchers when something about a machine is written.
type ChangeStore interface {
	Watch(machine string) (ch <-chan struct{}, cancel func())
}

// ImageStore finds images by name.
type ImageStore interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
}

// Stores holds the interfaces to the inventory that the routes read and write. Package inventory/sqlite implements all
// of them.
type Stores struct {
	Agents   AgentStore
	Changes  ChangeStore
	Grants   GrantStore
	Images   ImageStore
	Machines MachineStore
	Work     WorkStore
}

// Config holds the dependencies of the agent API. All fields are required except the durations and Discovery.
type Config struct {
	Stores   Stores
	Agents   *engine.Agents
	Stopping <-chan struct{} // closed when the server stops; long polls then end
	// ClaimKey is the key from which claims and agent tokens are derived. The boot servers must use the same key.
	ClaimKey []byte
	// OpenImage opens the file of an image; see imagefile.Files.
	OpenImage func(i inventory.Image) (*os.File, error)
	// RuntimePath is the path of the archive with the container runtime (action.RuntimeFile); "" means that there is none.
	RuntimePath string
	Guard       *guard.Guard
	Log         *slog.Logger
	Now         func() time.Time
	// Heartbeat is the interval of the agents' heartbeats, in whole seconds; 0 means 2 s.
	Heartbeat time.Duration
	// SecretsFor is how long an agent can fetch secrets after it has redeemed its claim; 0 means 1 h.
	SecretsFor time.Duration
	// Discovery is zero if unknown machines are not discovered.
	Discovery Discovery
}

// Discovery receives the reports of unknown machines.
type Discovery struct {
	// Guest reports whether mac belongs to an unknown machine that uses this address during its discovery.
	Guest func(ctx context.Context, mac string, address netip.Addr) bool
	// Report stores the hardware of an unknown machine. It returns the name of the machine if it has been added to the
	// inventory, otherwise "".
	Report func(ctx context.Context, mac string, facts action.Facts) (machine string, err error)
}

// server handles the requests of agents.
type server struct {
	Config
	logged   onceLog
	reported reported
}

// Limits of the agents' request bodies and of the message in a report, in bytes.
const (
	maxHello     = action.MaxHello // security S7
	maxHeartbeat = 64 << 10
	maxReport    = 256 << 10
	maxMessage   = 8 << 10
)

// bodyTime limits the time to receive the body of an agent's request.
const bodyTime = 30 * time.Second

// lenientBody returns the Body for an agent's request. Unknown fields are ignored, because the agent may be of a newer
// release than the server.
func lenientBody(limit int64) httpapi.Body {
	return httpapi.Body{Limit: limit, Lenient: true, Within: bodyTime}
}
