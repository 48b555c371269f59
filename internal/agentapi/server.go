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

// AgentStore holds agents: the redeemed claims of their boots, and their tokens.
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

// GrantStore holds which run owns a machine.
type GrantStore interface {
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
}

// WorkStore holds the work of agents and receives their results.
type WorkStore interface {
	NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error)
	Delivered(ctx context.Context, o inventory.Owner, k action.Key) error
	Stops(ctx context.Context, o inventory.Owner) ([]action.Key, error)
	Report(ctx context.Context, o inventory.Owner, boot int, r action.Result) (fresh bool, err error)
}

// ChangeStore reports writes about a machine.
type ChangeStore interface {
	Watch(machine string) (ch <-chan struct{}, cancel func())
}

// ImageStore finds images by name.
type ImageStore interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
}

// Stores is what agents read and write; inventory/sqlite implements it all.
type Stores struct {
	Agents   AgentStore
	Changes  ChangeStore
	Grants   GrantStore
	Images   ImageStore
	Machines MachineStore
	Work     WorkStore
}

// Config is what the agents' interface needs. Everything except the durations is required.
type Config struct {
	Stores   Stores
	Agents   *engine.Agents
	Stopping <-chan struct{} // closed when long polls must end
	// ClaimKey derives claims and agent tokens; the boot servers use the same key.
	ClaimKey []byte
	// OpenImage opens the file of an image; see imagefile.Files.
	OpenImage func(i inventory.Image) (*os.File, error)
	Guard     *guard.Guard
	Log       *slog.Logger
	Now       func() time.Time
	// Heartbeat is how often agents call, in whole seconds; 0 means 2 s.
	Heartbeat time.Duration
	// SecretsFor is how long an agent's claim opens the secrets window; 0 means 1 h.
	SecretsFor time.Duration
	// Discovery is zero if no unknown machine is discovered.
	Discovery Discovery
}

// Discovery receives the reports of unknown machines.
type Discovery struct {
	// Guest reports whether DHCP has given this address to this unknown MAC.
	Guest func(ctx context.Context, mac string, address netip.Addr) bool
	// Report stores the hardware of an unknown machine. It returns the machine's name if the
	// machine is in the inventory now.
	Report func(ctx context.Context, mac string, facts action.Facts) (machine string, err error)
}

// server answers agents.
type server struct {
	Config
	logged   onceLog
	reported reported
}

// Limits of what an agent may send, in bytes.
const (
	maxHello     = action.MaxHello // security S7
	maxHeartbeat = 64 << 10
	maxReport    = 256 << 10
	maxMessage   = 8 << 10
)

// bodyTime is how long the body of an agent's request may take.
const bodyTime = 30 * time.Second

// lenientBody is the body of an agent's request; the agent may run the next release.
func lenientBody(limit int64) httpapi.Body {
	return httpapi.Body{Limit: limit, Lenient: true, Within: bodyTime}
}
