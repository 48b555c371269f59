package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/agentapi"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

const (
	adminToken  = "test-admin-token-of-sufficient-length"
	codecOrigin = "https://temporal-ui.example"
	mac         = fakesite.MAC
	nonceA      = fakesite.NonceA
	nonceB      = fakesite.NonceB
)

// answer is the body of an error.
type answer = httpapi.ErrorBody

// Store is all that operators, agents and the engine need of a store.
type Store interface {
	ApplicationStore
	MachineStore
	WindowStore
	ViewStore
	TemplateStore
	ImageStore
	WorkflowStore
	EventStore
	OperationStore
	GenesisStore
	BMCJobStore
	SessionStore
	TokenStore
	KeyStore
	AgentStore
	DiskStore
	SeenStore
	SyslogStore
	ChangeStore
	KeyedRequestStore
	engine.KeyedRequestStore
	engine.EventStore
	engine.GrantStore
	engine.WorkflowStore
	engine.OperationStore
	engine.IntakeStore
	engine.AgentStore
	agentapi.AgentStore
	agentapi.ChangeStore
	agentapi.WorkStore
	PutDiscovered(ctx context.Context, mac string, facts action.Facts, at time.Time) (machine string, err error)
}

// siteConfig is what tests may change.
type siteConfig struct {
	Store             Store
	Temporal          engine.Temporal
	ClaimKey          []byte
	AllowedHosts      []string
	BaseURL           string
	Log               *slog.Logger
	Now               func() time.Time
	Heartbeat         time.Duration
	ImageDir, DataDir string
	Shares            []string
	FetchHosts        []string
	Registries        []Registry
	UploadHosts       []string
	Catalog           string
	Resolver          *net.Resolver
	MinFree           int64
	Reserve           func() diskreserve.State
	Network           func() inventory.Network
	CheckBMCHost      func(string) error
	CheckPowerCommand func(string) error
	Site              Site
	Intake            func(context.Context) (string, error)
	TemporalUI        TemporalUI
	Upkeep
	Process
}

// site is a server with a real store and a Temporal that is not.
type site struct {
	*fakesite.Site
	cfg      siteConfig
	guard    *guard.Guard
	engine   *engine.Engine
	api      *API
	stored   *imagefile.Files
	operator http.Handler
	agent    http.Handler
	uiBound  bool // see temporalUI
}

func newSite(t *testing.T, change ...func(*siteConfig)) *site {
	t.Helper()
	s := &site{Site: fakesite.New(t)}
	s.cfg = siteConfig{
		Store: fakesite.InventoryOf(
			s.Store,
		),
		Temporal: s.Temporal.Connect,
		ClaimKey: bytes.Repeat([]byte{7}, 32),
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		Now:      s.Clock.Now,
		ImageDir: t.TempDir(),
		MinFree:  1,
		Process:  Process{Version: "v0-test"},
	}
	s.restart(change...)

	return s
}

// restart makes a new server, as after a restart of the process.
func (s *site) restart(change ...func(*siteConfig)) {
	s.T.Helper()
	for _, f := range change {
		f(&s.cfg)
	}
	c := s.cfg
	s.guard = guard.New(c.Log)
	s.stored = imagefile.New(c.ImageDir, c.Shares)
	s.engine = engine.New(engine.Config{
		Stores: engine.Stores{
			Agents:      c.Store,
			Assignments: c.Store,
			Changes:     c.Store,
			Events:      c.Store,
			Grants:      c.Store,
			Intake:      c.Store,
			Operations:  c.Store,
			Workflows:   c.Store,
			Keyed:       c.Store,
		},
		Temporal: c.Temporal,
		Guard:    s.guard,
		Log:      c.Log,
		Now:      c.Now,
		Held: func() []inventory.HeldRun {
			if c.Restored == nil {
				return nil
			}
			return c.Restored().Held
		},
	})
	var err error
	s.api, err = New(s.apiConfig())
	require.NoError(s.T, err)
	s.operator = s.api.Handler()
	s.agent = agentapi.New(agentapi.Config{
		Stores: agentapi.Stores{
			Agents: c.Store, Changes: c.Store, Grants: c.Store, Images: c.Store, Machines: c.Store, Work: c.Store,
		},
		Agents: s.engine.Agents, Stopping: s.engine.Stopping, ClaimKey: c.ClaimKey, OpenImage: s.stored.Open,
		RuntimePath: filepath.Join(c.ImageDir, action.RuntimeFile), Guard: s.guard, Log: c.Log,
		Now: c.Now, Heartbeat: c.Heartbeat,
		Discovery: agentapi.Discovery{
			Guest: func(_ context.Context, mac string, a netip.Addr) bool {
				return mac == guestMAC && a.String() == "192.0.2.1"
			},
			Report: func(ctx context.Context, mac string, facts action.Facts) (string, error) {
				return c.Store.PutDiscovered(ctx, mac, facts, c.Now())
			},
		},
	})
}

// guestMAC is the unknown machine that DHCP has admitted, at the source address of requests.
const guestMAC = "52:54:00:00:00:99"

func (s *site) apiConfig() Config {
	c := s.cfg
	return Config{
		Stores: Stores{
			Agents: c.Store, Applied: c.Store, BMCJobs: c.Store, Changes: c.Store, Disks: c.Store, Events: c.Store, Genesis: c.Store,
			Images: c.Store, Keyed: c.Store, Keys: c.Store, Machines: c.Store, Operations: c.Store, Seen: c.Store,
			Sessions: c.Store, Syslog: c.Store, Templates: c.Store, Tokens: c.Store, Views: c.Store, Windows: c.Store, Workflows: c.Store,
		},
		Engine: s.engine,
		Access: Access{
			TokenSHA256: sha256.Sum256([]byte(adminToken)), ClaimKey: c.ClaimKey, CodecOrigin: codecOrigin,
			AllowedHosts: c.AllowedHosts, BaseURL: c.BaseURL,
		},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, "ingot_up 1\n") // read from memory
		}),
		Codec: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }),
		Images: ImageConfig{
			Dir:         c.ImageDir,
			Files:       s.stored,
			FetchHosts:  c.FetchHosts,
			Registries:  c.Registries,
			Catalog:     c.Catalog,
			Resolver:    c.Resolver,
			UploadHosts: c.UploadHosts,
		},
		Space:   SpaceConfig{DataDir: c.DataDir, MinFree: c.MinFree, Reserve: c.Reserve},
		Netboot: Netboot{Network: c.Network, Why: whyNotArmed, Leases: aLease},
		BMC: BMC{
			CheckHost: c.CheckBMCHost, CheckCommand: c.CheckPowerCommand,
			Check: func(context.Context, inventory.Machine, bool) (inventory.BMCReport, error) {
				return inventory.BMCReport{Power: "on"}, nil
			},
			ForgetKey: func(context.Context, string) error { return nil },
		},
		TemporalUI: c.TemporalUI,
		Upkeep:     c.Upkeep,
		Process:    c.Process,
		Site:       c.Site,
		Intake:     c.Intake,
		Guard:      s.guard,
		Log:        c.Log,
		Now:        c.Now,
	}
}

func aLease() []inventory.DHCPLease {
	return []inventory.DHCPLease{{
		MAC: "52:54:00:00:00:0b", Machine: "m1", Address: netip.MustParseAddr("192.0.2.11"), State: inventory.LeaseBound,
		At: time.Unix(1, 0).UTC(), Expires: time.Unix(601, 0).UTC(), Where: "eth0",
	}, {
		MAC: "52:54:00:00:00:0c", Address: netip.MustParseAddr("192.0.2.200"), State: inventory.LeaseDiscovery,
		At: time.Unix(1, 0).UTC(), Expires: time.Unix(601, 0).UTC(), Where: "eth0",
	}}
}

func whyNotArmed(_ context.Context, mac string) (any, error) {
	return map[string]any{"mac": mac, "reasons": []string{"not armed"}}, nil
}

// header sets or, with "", removes a header of a request.
type header struct{ name, value string }

// do sends a request with the admin token to the operator's listener.
func (s *site) do(method, path string, in any, hs ...header) *httptest.ResponseRecorder {
	s.T.Helper()
	return send(s.T, s.operator, method, path, in, append([]header{{"Authorization", "Bearer " + adminToken}}, hs...)...)
}

func send(t *testing.T, h http.Handler, method, path string, in any, hs ...header) *httptest.ResponseRecorder {
	t.Helper()
	var b []byte
	switch v := in.(type) {
	case nil:
	case string:
		b = []byte(v)
	case []byte:
		b = v
	default:
		var err error
		b, err = json.Marshal(v)
		require.NoError(t, err)
	}
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(b))
	r.Host = "127.0.0.1:8080"
	for _, h := range hs {
		switch {
		case h.value == "":
			r.Header.Del(h.name)
		case h.name == "Host":
			r.Host = h.value
		default:
			r.Header.Set(h.name, h.value)
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// decode reads an answer that must have this status.
func decode[T any](t *testing.T, rec *httptest.ResponseRecorder, status int) T {
	t.Helper()
	require.Equal(t, status, rec.Code, rec.Body.String())
	var v T
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &v), rec.Body.String())
	return v
}

func machine(name, mac string) inventory.Machine {
	return inventory.Machine{Name: name, Interfaces: []inventory.Interface{{MAC: mac}}}
}

func (s *site) hello(o inventory.Owner, boot int, nonce string) action.Hello {
	return fakesite.Hello(s.cfg.ClaimKey, o, boot, nonce)
}

// welcome claims a boot.
func (s *site) welcome(o inventory.Owner, nonce string) action.Welcome {
	s.T.Helper()
	return decode[action.Welcome](s.T, send(s.T, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonce)), http.StatusOK)
}

func bearer(token string) header { return header{"Authorization", "Bearer " + token} }
