// Package api is Ingot's REST: for operators, for the browser, and for the
// agent, each on a listener of its own. It is the only server that knows
// Temporal: it starts and changes runs, its pump passes events on to them, and
// its reconcile loop repairs what a run that ended from outside left open.
package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/internal/quiet"
	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/web"
	"github.com/ingotmetal/ingot/workflows"
)

//go:embed openapi.yaml
var openapi []byte

// Store is what the API keeps and reads. Package inventory/sqlite implements
// it; each part is declared beside the routes that use it.
type Store interface {
	machineStore
	templateStore
	imageStore
	workflowStore
	operationStore
	genesisStore
	bmcStore
	agentStore
	statusStore
	pumpStore
	reconcileStore
	sessionStore
}

// Temporal returns a connected client, or false while Temporal is not ready.
type Temporal func() (client.Client, bool)

// Config is what a Server needs. Store, Temporal, TokenSHA256, ClaimKey and
// Log are required.
type Config struct {
	Store    Store
	Temporal Temporal
	// Namespace of Temporal; "" = "default".
	Namespace string
	// TokenSHA256 is the SHA-256 of the admin token's text.
	TokenSHA256 [sha256.Size]byte
	// ClaimKey derives claims and agent tokens; the boot servers hold the same.
	ClaimKey []byte
	// AllowedHosts are the names (without port) under which operators reach
	// this server; nil = localhost, 127.0.0.1 and ::1.
	AllowedHosts []string
	// BaseURL begins login links; "" = http://127.0.0.1:8080. With https the
	// session cookie is Secure.
	BaseURL string
	// Guard counts what panics while it handles input of the network; nil = one
	// of this server's own.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time // nil = time.Now
	// Elapsed is the time since some moment by a clock that nobody sets, by
	// which silence is judged; nil = by Now, which is right for time.Now.
	Elapsed func() time.Duration
	// Up is for how long this server has listened to agents without a break,
	// by the same clock; nil = since New.
	Up      func() time.Duration
	Version string
	// ImageDir is where uploaded and fetched images lie; "" refuses both.
	ImageDir string
	// DataDir is where the databases lie; "" = its space is not looked at.
	DataDir string
	// MinFree is the space, in bytes, below which new runs (in DataDir) and
	// uploads (there and in ImageDir) are refused; 0 = 1 GiB.
	MinFree int64
	// Reserve tells how the space stands that is kept in DataDir for runs that
	// are under way; nil = none is kept.
	Reserve func() reserve.State
	// FetchHosts are hosts from which images may be fetched over plain http,
	// or that lie in private address ranges.
	FetchHosts []string
	// Resolver looks up the hosts from which images are fetched; nil = the
	// system's.
	Resolver *net.Resolver
	// CheckBMCHost tells whether a BMC may be addressed there; nil = anywhere.
	// Names are judged when they are dialled.
	CheckBMCHost func(host string) error
	// Network is what this server knows now of the provisioning network, against
	// which reservations are checked; nil = nothing.
	Network func() inventory.Network
	// UnknownDropped counts the packets of unknown MACs that GET /v1/seen does
	// not list, since the server started; nil = none.
	UnknownDropped func() int64
	// CheckPowerCommand tells whether the configuration has a power command of
	// that name; nil = not asked.
	CheckPowerCommand func(name string) error
	// Why answers with the boot decision for a MAC and its reasons.
	Why func(ctx context.Context, mac string) (any, error)
	// CheckBMC logs in to a machine's BMC and returns its power state.
	CheckBMC func(ctx context.Context, m inventory.Machine) (power string, err error)
	// Status adds what only the process knows to GET /v1/status; may be nil.
	Status func(ctx context.Context) StatusExtra
	// TestNotice sends a notice at once and returns its id; nil: nobody is told.
	TestNotice func(ctx context.Context) (id string, err error)
	// RotateKeys replaces the keys of the stored secrets and tells how many
	// were sealed again; nil: this server has none.
	RotateKeys func(ctx context.Context) (int, error)
	// Backup copies what this server keeps; nil: it keeps nothing.
	Backup func(ctx context.Context, q BackupRequest) (Archive, error)
	// Site is this server among its peers; nil: it has none.
	Site Site
	// Intake tells why new runs are refused, "" when they are taken; nil: always.
	Intake func(ctx context.Context) (why string, err error)
	// Restored is what is known of the backup from which this site was restored.
	Restored inventory.Restore
	// NoSecretKey: the key file is missing, so that secrets cannot be opened.
	NoSecretKey bool
	// ImageURL is where an agent fetches an image; nil = where it came from.
	// It is for display: a run resolves its images itself.
	ImageURL func(i inventory.Image) string
	// Heartbeat is how often agents call; 0 = 2 s. Whole seconds.
	Heartbeat time.Duration
	// LostAfter is the silence after which an agent with work counts as lost;
	// 0 = 60 s. IdleAfter is how long an agent may ask for work in vain; 0 = 10 s.
	LostAfter, IdleAfter time.Duration
	// Retrying tells which activities of a run fail and are tried again; may be nil.
	Retrying func(run string) []string
	// SecretsFor is how long an agent's claim opens the secrets window; 0 = 1 h.
	SecretsFor time.Duration
}

// Server answers operators and agents. Make one with New.
type Server struct {
	cfg     Config
	agents  *agents
	logins  *logins
	hosts   map[string]bool
	started time.Time
	// stopping is closed when Run ends, so that polls and streams end, too.
	stopping chan struct{}
	fresh    freshRuns
	told     told
	uploads  sync.Map // image name → *atomic.Int64: how much was checked, while it is written
	// publishing is held while the file of an image gets its place or loses it.
	publishing sync.Mutex
	board      board
	streams    chan struct{} // one element per open SSE stream
	pump       *Pump
	recon      *Reconciler
}

// New returns a Server. Nothing runs until Run, Pump().Run and
// Reconciler().Run are called; the handlers work without.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Store == nil, cfg.Temporal == nil, cfg.Log == nil:
		return nil, errors.New("making the API: Store, Temporal and Log are required")
	case len(cfg.ClaimKey) < 32:
		return nil, errors.New("making the API: the claim key is shorter than 32 bytes")
	case cfg.TokenSHA256 == [sha256.Size]byte{}:
		return nil, errors.New("making the API: there is no admin token")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Elapsed == nil {
		begun := cfg.Now()
		cfg.Elapsed = func() time.Duration { return cfg.Now().Sub(begun) }
	}
	if cfg.Up == nil {
		begun := cfg.Elapsed()
		cfg.Up = func() time.Duration { return cfg.Elapsed() - begun }
	}
	// Agents and their network are strangers until they have proven something.
	cfg.Log = slog.New(quiet.Handler(cfg.Log.Handler(), cfg.Now))
	if cfg.Guard == nil {
		cfg.Guard = guard.New(cfg.Log)
	}
	if cfg.Namespace == "" {
		cfg.Namespace = client.DefaultNamespace
	}
	if cfg.AllowedHosts == nil {
		cfg.AllowedHosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://127.0.0.1:8080"
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.Heartbeat, 2*time.Second)
	def(&cfg.LostAfter, time.Minute)
	def(&cfg.IdleAfter, 10*time.Second)
	def(&cfg.SecretsFor, time.Hour)
	if cfg.MinFree == 0 {
		cfg.MinFree = 1 << 30
	}
	s := &Server{cfg: cfg, hosts: map[string]bool{}, started: cfg.Now(), stopping: make(chan struct{}), streams: make(chan struct{}, maxStreams)}
	for _, h := range cfg.AllowedHosts {
		s.hosts[hostname(h)] = true
	}
	s.agents = newAgents(cfg.Store, cfg.Guard, cfg.Log, cfg.Elapsed)
	ended, err := cfg.Store.EndedSessions(context.Background())
	if err != nil {
		return nil, fmt.Errorf("making the API: %w", err)
	}
	s.logins = newLogins(cfg, ended)
	s.pump = &Pump{Store: cfg.Store, Temporal: cfg.Temporal, Namespace: cfg.Namespace, Guard: cfg.Guard, Log: cfg.Log}
	s.recon = &Reconciler{
		Store: cfg.Store, Temporal: cfg.Temporal, Guard: cfg.Guard, Log: cfg.Log, Now: cfg.Now, Elapsed: cfg.Elapsed, Up: cfg.Up,
		LostAfter: cfg.LostAfter, IdleAfter: cfg.IdleAfter, agents: s.agents, pump: s.pump, Held: cfg.Restored.Held,
	}
	// gin prints its routes unless told not to; there is no other way to say so.
	gin.SetMode(gin.ReleaseMode)
	return s, nil
}

// Run writes what agents said of themselves to the store every 10 s until ctx
// is done. When it ends, long polls and event streams end, too: call it once.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.stopping)
	return s.agents.run(ctx)
}

// Pump returns the pump that signals events to their runs.
func (s *Server) Pump() *Pump { return s.pump }

// Reconciler returns the loop that repairs what runs left behind.
func (s *Server) Reconciler() *Reconciler { return s.recon }

// Operator returns the routes for operators and the page.
func (s *Server) Operator() http.Handler { return s.operator() }

// Agent returns the routes for agents. They belong on a TLS listener of their
// own whose key the boot script pins.
func (s *Server) Agent() http.Handler { return s.agentRoutes() }

func (s *Server) operator() *gin.Engine {
	r := s.engine()
	r.Use(s.headers, s.checkHost)
	r.GET("/healthz", s.healthz)
	r.GET("/login/:code", s.login)
	r.POST("/login", s.loginByToken)

	r.Use(s.authenticate, s.checkOrigin)
	r.POST("/v1/login-links", s.createLoginLink)
	r.POST("/v1/logout", s.logout)
	r.GET("/v1/openapi.yaml", s.openapi)
	r.GET("/v1/status", s.status)
	r.GET("/v1/secrets", s.secrets)
	r.POST("/v1/secrets/rotate", s.rotateSecrets)
	r.POST("/v1/backup", s.backup)
	r.POST("/v1/notices/test", s.testNotice)
	r.GET("/v1/site", s.getSite)
	r.POST("/v1/site/decide", s.decideSite)
	r.GET("/v1/peers", s.listPeers)
	r.POST("/v1/peers", s.addPeer)
	r.DELETE("/v1/peers/:name", s.removePeer)
	r.POST("/v1/migrate", s.startMigrate)

	r.GET("/v1/machines", s.listMachines)
	r.POST("/v1/machines", s.pushMachines)
	r.GET("/v1/machines/:name", s.getMachine)
	r.PATCH("/v1/machines/:name", s.patchMachine)
	r.DELETE("/v1/machines/:name", s.deleteMachine)
	r.GET("/v1/machines/:name/disks", s.machineDisks)
	r.GET("/v1/machines/:name/events", s.machineEvents)
	r.GET("/v1/machines/:name/workflow", s.machineWorkflow)
	r.GET("/v1/machines/:name/why", s.whyMachine)
	r.POST("/v1/machines/:name/provision", s.install(workflows.ProvisionType))
	r.POST("/v1/machines/:name/reprovision", s.install(workflows.ReprovisionType))
	r.POST("/v1/machines/:name/decommission", s.decommissionMachine)
	r.POST("/v1/machines/:name/release", s.releaseMachine)
	r.POST("/v1/recover", s.startRecover)
	r.POST("/v1/machines/:name/inspect", s.inspectMachine)
	r.POST("/v1/machines/:name/netboot", s.netbootMachine)
	r.POST("/v1/machines/:name/power", s.powerMachine)
	r.POST("/v1/machines/:name/boot-device", s.bootDeviceMachine)
	r.GET("/v1/why/:mac", s.whyMAC)
	r.GET("/v1/seen", s.listSeen)
	r.POST("/v1/seen/:mac/accept", s.acceptSeen)

	r.GET("/v1/templates", s.listTemplates)
	r.POST("/v1/templates", s.createTemplate)
	r.GET("/v1/templates/:name", s.getTemplate)
	r.DELETE("/v1/templates/:name", s.deleteTemplate)
	r.POST("/v1/templates/:name/render", s.renderTemplate)

	r.GET("/v1/images", s.listImages)
	r.POST("/v1/images", s.fetchImage)
	r.GET("/v1/images/:name", s.getImage)
	r.PUT("/v1/images/:name", s.uploadImage)
	r.DELETE("/v1/images/:name", s.deleteImage)
	r.HEAD("/v1/images/:name/upload", s.uploadState)
	r.POST("/v1/images/:name/verify", s.verifyImage)

	r.GET("/v1/workflows", s.listWorkflows)
	r.POST("/v1/workflows", s.createWorkflow)
	r.GET("/v1/workflows/:run", s.getWorkflow)
	r.DELETE("/v1/workflows/:run", s.deleteWorkflow)
	r.GET("/v1/workflows/:run/events", s.workflowEvents)
	r.GET("/v1/workflows/:run/logs", s.workflowLogs)
	r.POST("/v1/workflows/:run/retry", s.retryWorkflow)
	r.POST("/v1/workflows/:run/decide", s.decideWorkflow)
	r.POST("/v1/workflows/:run/cancel", s.cancelWorkflow)
	r.POST("/v1/workflows/:run/powered-on", s.poweredOn)

	r.GET("/v1/operations", s.listOperations)
	r.GET("/v1/operations/:run", s.getOperation)
	r.POST("/v1/operations/:run/decide", s.decideOperation)
	r.POST("/v1/operations/:run/cancel", s.cancelOperation)

	r.GET("/v1/genesis", s.listGenesis)
	r.GET("/v1/genesis/:name", s.getGenesis)
	r.PUT("/v1/genesis/:name", s.putGenesis)
	r.DELETE("/v1/genesis/:name", s.deleteGenesis)
	r.GET("/v1/genesis/:name/status", s.genesisStatus)
	r.POST("/v1/genesis/:name/plan", s.planGenesis)
	r.POST("/v1/genesis/:name/start", s.startGenesis)
	r.POST("/v1/genesis/:name/resume", s.resumeGenesis)
	r.POST("/v1/genesis/:name/cancel", s.cancelGenesis)

	r.GET("/v1/bmc/jobs", s.listBMCJobs)
	r.POST("/v1/bmc/jobs", s.createBMCJob)
	r.GET("/v1/bmc/jobs/:machine/:job", s.getBMCJob)
	r.POST("/v1/bmc/check", s.checkBMC)

	r.GET("/v1/events/stream", s.stream)
	r.NoRoute(s.page(web.Handler()))
	return r
}

func (s *Server) agentRoutes() *gin.Engine {
	r := s.engine()
	r.Use(func(c *gin.Context) { c.Header("X-Content-Type-Options", "nosniff") })
	r.POST("/agent/v1/claim", s.claim)
	r.GET("/agent/v1/next", s.next)
	r.POST("/agent/v1/report", s.report)
	r.POST("/agent/v1/heartbeat", s.heartbeat)
	r.GET("/agent/v1/images/:name", s.agentImage)
	return r
}

func (s *Server) engine() *gin.Engine {
	r := gin.New()
	// The peer's address is the socket's: no header changes it (security S4).
	if err := r.SetTrustedProxies(nil); err != nil {
		panic(err) // an empty list cannot be malformed
	}
	r.HandleMethodNotAllowed = true
	r.NoMethod(func(c *gin.Context) {
		refuse(c, http.StatusMethodNotAllowed, codeInvalid, "this route has no method "+c.Request.Method, "")
	})
	r.NoRoute(notFound)
	r.Use(s.recoverAndLog)
	return r
}

func notFound(c *gin.Context) { refuse(c, http.StatusNotFound, codeNotFound, "not found", "") }

// recoverAndLog keeps one request's panic from ending the server, and writes a
// line per request. It logs routes and never paths: a login link is one.
func (s *Server) recoverAndLog(c *gin.Context) {
	start := time.Now()
	defer func() {
		if v := recover(); v != nil {
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			s.cfg.Guard.Caught(c.Request.Method+" "+c.FullPath(), v)
			if !c.Writer.Written() {
				refuse(c, http.StatusInternalServerError, codeInternal, "internal error", "")
			}
		}
		s.cfg.Log.Debug("request", "method", c.Request.Method, "route", c.FullPath(), "status", c.Writer.Status(), "took", time.Since(start))
	}()
	c.Next()
}

func (s *Server) healthz(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"ok": true}) }

func (s *Server) openapi(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", openapi) }

// How long the body of a request may be, in bytes: of any, and of one that
// stores machines, which holds all machines of a site at once.
const (
	maxBody = 1 << 20
	maxPush = 64 << 20
)

// body reads the request's JSON into v; unknown fields and trailing text are
// refused. An empty body leaves v as it is when optional.
func body(c *gin.Context, v any, optional bool) error { return bodyWithin(c, v, optional, maxBody) }

// bodyWithin is body with a limit of its own.
func bodyWithin(c *gin.Context, v any, optional bool, limit int64) error {
	dec := json.NewDecoder(http.MaxBytesReader(c.Writer, c.Request.Body, limit))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var tooLarge *http.MaxBytesError
	switch {
	case optional && errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, io.EOF):
		return invalid("", "send JSON", "the body is empty")
	case err != nil:
		return malformed("", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("", "send one JSON value", "text follows the body's JSON")
	}
	return nil
}

// strict reads the input of a workflow, raw JSON, like body does.
func strict(raw json.RawMessage, v any) error {
	const field = "input"
	if len(raw) == 0 {
		return invalid(field, "", "is missing")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return malformed(field, err)
	}
	return nil
}

// malformed says in the words of JSON what is wrong with a body, or with the
// field of one; what encoding/json says names types of Go.
func malformed(field string, err error) error {
	const remedy = "see GET /v1/openapi.yaml"
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		at := strings.Trim(field+"."+wrong.Field, ".")
		return invalid(at, remedy, "a JSON %s cannot stand here", wrong.Value)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalid(field, remedy, "the JSON ends too early")
	}
	return invalid(field, remedy, "%s", strings.TrimPrefix(err.Error(), "json: "))
}

// list is the body of every list.
type list[T any] struct {
	Items []T `json:"items"`
}

func items[T any](xs []T) list[T] {
	if xs == nil {
		xs = []T{}
	}
	return list[T]{Items: xs}
}

// intQuery reads a whole number ≥ 0 from the query.
func intQuery(c *gin.Context, name string, def int64) (int64, error) {
	v := c.Query(name)
	if v == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid(name, "", "%q is no whole number", v)
	}
	return n, nil
}

func hostname(hostport string) string {
	h := hostport
	if ap, err := netip.ParseAddrPort(hostport); err == nil {
		return ap.Addr().String()
	}
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		h = host
	}
	if a, err := netip.ParseAddr(strings.Trim(h, "[]")); err == nil {
		return a.String()
	}
	return strings.ToLower(strings.TrimSuffix(h, "."))
}
