// Package agentapi is the interface for agents: they redeem the claim of their boot, fetch
// work and images, and report. It needs its own TLS listener, whose key the boot script
// pins.
package agentapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
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

// lenient is the body of an agent's request; the agent may run the next release.
func lenient(limit int64) httpapi.Body {
	return httpapi.Body{Limit: limit, Lenient: true, Within: bodyTime}
}

// New returns the routes.
func New(c Config) http.Handler {
	if c.Heartbeat <= 0 {
		c.Heartbeat = 2 * time.Second
	}
	if c.SecretsFor <= 0 {
		c.SecretsFor = time.Hour
	}
	// Agents are not trusted until authenticated: limit what they can make the server log.
	c.Log = slog.New(quietlog.Handler(c.Log.Handler(), c.Now))
	s := &server{Config: c}

	r := httpapi.NewRouter(c.Log, c.Guard)
	r.Use(func(c *gin.Context) { c.Header("X-Content-Type-Options", "nosniff") })
	httpapi.AddRoutes(r, []httpapi.Route{
		{Method: "POST", Path: "/agent/v1/discover", Handler: s.discover},
		{Method: "POST", Path: "/agent/v1/claim", Handler: httpapi.Handle(http.StatusOK, lenient(maxHello), s.claim)},
	})
	httpapi.AddRoutes(r.Group("", s.authenticate), []httpapi.Route{
		{Method: "GET", Path: "/agent/v1/next", Handler: s.next},
		{Method: "POST", Path: "/agent/v1/report", Handler: httpapi.Handle(http.StatusNoContent, lenient(maxReport), s.report)},
		{Method: "POST", Path: "/agent/v1/heartbeat", Handler: httpapi.Handle(http.StatusOK, lenient(maxHeartbeat), s.heartbeat)},
		{Method: "GET", Path: "/agent/v1/images/:name", Handler: s.image},
	})

	return r
}
