// Package api serves the REST interface of the operators and of the web page. Each resource, such as machines or
// images, is a struct in a file of the same name. New connects them.
package api

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/web"
)

//go:embed openapi.yaml
var openapi []byte

// Stores holds the interfaces to the inventory that the routes read and write. Package inventory/sqlite implements all
// of them.
type Stores struct {
	Agents     AgentStore
	Applied    ApplicationStore
	BMCJobs    BMCJobStore
	Changes    ChangeStore
	Disks      DiskStore
	Events     EventStore
	Genesis    GenesisStore
	Images     ImageStore
	Keyed      KeyedRequestStore
	Keys       KeyStore
	Machines   MachineStore
	Operations OperationStore
	Seen       SeenStore
	Sessions   SessionStore
	Syslog     SyslogStore
	Templates  TemplateStore
	Tokens     TokenStore
	Views      ViewStore
	Windows    WindowStore
	Workflows  WorkflowStore
}

// Config holds the dependencies of the API. Stores, Engine, Access.TokenSHA256, Access.ClaimKey and Log are required.
type Config struct {
	Stores Stores
	Engine *engine.Engine
	Access Access
	Images ImageConfig
	Space  SpaceConfig
	// Netboot holds functions that read the state of the provisioning network.
	Netboot Netboot
	BMC     BMC
	Upkeep  Upkeep
	Process Process
	// Trace returns a context with the trace of a POST request, because such a request may start a run. If Trace is
	// nil, runs have no traces.
	Trace func(ctx context.Context, h http.Header, method, route string) context.Context
	// Metrics handles GET /metrics. If it is nil, the route returns 404.
	Metrics http.Handler
	// Codec encrypts and decrypts Temporal payloads. If Codec is nil, payloads are not encrypted, and /codec returns
	// 404.
	Codec http.Handler
	// TemporalUI is the web UI of the embedded Temporal server.
	TemporalUI TemporalUI
	// Site reads and changes the role of this server among its peers. If Site is nil, this server cannot have peers.
	Site Site
	// Intake returns why new runs are refused, or "" if they are accepted. If Intake is nil, new runs are always
	// accepted.
	Intake func(ctx context.Context) (why string, err error)
	// Guard counts the panics of request handlers. If it is nil, New creates one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time // nil means time.Now
}

// An API is created with New.
type API struct {
	nouns
	handler    *gin.Engine
	temporalUI *temporalUI
}

// New returns the API, or an error if a required field of c is missing.
func New(c Config) (*API, error) {
	switch {
	case c.Engine == nil, c.Log == nil:
		return nil, errors.New("making the API: Engine and Log are required")
	case len(c.Access.ClaimKey) < 32:
		return nil, errors.New("making the API: the claim key is shorter than 32 bytes")
	case c.Access.TokenSHA256 == inventory.TokenDigest{}:
		return nil, errors.New("making the API: there is no admin token")
	}
	for field, store := range reflect.ValueOf(c.Stores).Fields() {
		if store.IsNil() {
			return nil, fmt.Errorf("making the API: Stores.%s is required", field.Name)
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	// Limit how much agents and their network can make the server log.
	c.Log = slog.New(quietlog.Handler(c.Log.Handler(), c.Now))
	if c.Guard == nil {
		c.Guard = guard.New(c.Log)
	}
	access := &access{
		tokens: c.Stores.Tokens, sessions: c.Stores.Sessions, admin: c.Access.TokenSHA256, codecOrigin: c.Access.CodecOrigin,
		hosts: hostSet(c.Access.AllowedHosts), log: c.Log, now: c.Now, needs: map[string]inventory.Role{},
	}
	sessions := &sessions{access: access, base: cmp.Or(c.Access.BaseURL, "http://127.0.0.1:8080"), silent: c.Upkeep.Silent}
	ui := newTemporalUI(access, c.TemporalUI, c.Guard)

	n := newNouns(c)
	r := httpapi.NewRouter(c.Log, c.Guard)
	r.Use(setHeaders, access.checkHost)
	access.addRoutes(r, sessions.openRoutes())
	access.addRoutes(r, access.metricsRoutes(c.Metrics))
	access.addRoutes(r, access.codecRoutes(c.Codec))
	r.Use(access.authenticate, checkOrigin, access.authorize, access.endWithCaller)
	if c.Trace != nil {
		r.Use(traceRequests(c.Trace))
	}
	r.Use(newKeyedRequests(c.Stores.Keyed, c.Engine.Runs, c.Access.ClaimKey, c.Log).handle)
	access.addRoutes(r, sessions.routes())
	access.addRoutes(r, ui.routes())
	for _, routes := range n.routes() {
		access.addRoutes(r, routes)
	}
	r.NoRoute(servePage(web.Handler()))

	return &API{nouns: n, handler: r, temporalUI: ui}, nil
}

// Handler returns the handler of all routes.
func (a *API) Handler() http.Handler { return a.handler }

// TemporalUI returns the handler of Temporal's UI, for a listener of its own.
func (a *API) TemporalUI() http.Handler { return a.temporalUI.handler() }

// ProbeImage checks that this server may fetch an image from the address, can reach it, and has enough space for the
// image. It does not count the space that other images will need.
func (a *API) ProbeImage(ctx context.Context, address string) error {
	return a.images.probe(ctx, address)
}

// FetchImage stores the file at address as the image called name, unless that image is stored already. by is the name of the operator. The
// error wraps inventory.ErrConflict if another caller stores the image just now, and inventory.ErrUnreachable if a later call may succeed.
func (a *API) FetchImage(ctx context.Context, name, address, by string) error {
	_, err := a.images.find(ctx, name)
	if !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	_, err = a.images.fetch(httpapi.WithActor(ctx, by), fetchImage{Name: name, URL: address, once: true})
	if errors.Is(err, httpapi.ErrNoSpace) || errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %w", err, inventory.ErrRefused) // another try would fill the disk again
	}
	cut, ok := errors.AsType[interrupted](err)
	if _, refused := errors.AsType[refusal](err); ok && !refused {
		err = fmt.Errorf("%w: %w", cut.error, inventory.ErrUnreachable)
	}
	return err
}

// ResolveContainer returns the digest of the manifest for linux/amd64 that the registry has now for a tag. The error wraps
// inventory.ErrUnreachable if the registry does not answer within 10 seconds or cannot answer now, inventory.ErrNotFound
// if it does not have the image, and inventory.ErrInvalid if agents cannot run the image or this server must not contact
// the registry.
func (a *API) ResolveContainer(ctx context.Context, ref action.ContainerReference) (digest string, err error) {
	return a.images.puller.resolve(ctx, ref)
}

// Disks returns how much space is free on the disks to which new runs and uploads write: first the disk of the
// databases, then the disk of the images.
func (a *API) Disks() ([]apitypes.SpaceStatus, error) { return a.status.space.disks() }

// RemoveUnusedImages removes the files of images that were replaced or deleted, except files that the plan of an open
// run needs. It keeps files that have never been the file of an image in this inventory.
func (a *API) RemoveUnusedImages(ctx context.Context) { a.images.removeUnusedFiles(ctx) }

// nouns holds the resources of the API.
type nouns struct {
	applications *applications
	machines     *machines
	templates    *templates
	images       *images
	workflows    *workflowRoutes
	operations   *operations
	genesis      *genesisRoutes
	bmc          *bmcRoutes
	sites        *sites
	status       *statusRoutes
	tokens       *tokens
	upkeep       *upkeep
	board        *board
}

// newNouns creates the resources with their dependencies.
func newNouns(c Config) nouns {
	s, e := c.Stores, c.Engine
	space := newSpace(c.Space, c.Images.Dir)
	admission := &admission{intake: c.Intake, space: space}
	views := &views{store: s.Views, runs: e.Runs, agents: e.Agents, retrying: c.Process.Retrying, now: c.Now}
	events := &events{store: s.Events, log: c.Log, now: c.Now}

	fetch := fetcher{hosts: c.Images.FetchHosts, resolver: c.Images.Resolver}
	images := &images{
		ImageConfig: c.Images,
		store:       s.Images,
		users:       imageUserReader{s},
		fetcher:     fetch,
		puller:      puller{c.Images.Registries, fetch},
		space:       space,
		log:         c.Log,
		now:         c.Now,
	}
	machines := &machines{
		stores: s, views: views, events: events, netboot: c.Netboot, bmc: c.BMC, now: c.Now,
		captures: make(chan struct{}, maxCaptures), stopping: e.Stopping,
	}
	templates := &templates{store: s.Templates, machines: machines, images: images}
	operations := &operations{
		store: s.Operations, runs: e.Runs, admission: admission, changed: &e.Agents.Changed, log: c.Log, now: c.Now,
	}
	starter := &starter{
		runs: e.Runs, store: s.Workflows, jobs: s.BMCJobs, machines: machines, templates: templates, images: images,
		windows: s.Windows, views: views, operations: operations, events: events, admission: admission,
	}
	status := &statusRoutes{
		stores: s, engine: e, views: views, space: space, process: c.Process, site: c.Site,
		guard: c.Guard, now: c.Now, started: c.Now(),
	}

	return nouns{
		machines: machines, templates: templates, images: images, operations: operations, status: status,
		workflows: &workflowRoutes{
			store: s.Workflows, runs: e.Runs, agents: e.Agents, machines: machines, views: views, events: events, starter: starter,
		},
		genesis: &genesisRoutes{
			store: s.Genesis, keys: s.Keys, machines: machines, templates: templates,
			images: images, operations: operations, log: c.Log,
		},
		applications: &applications{store: s.Applied, machines: machines},
		bmc:          &bmcRoutes{store: s.BMCJobs, runs: e.Runs, machines: machines, starter: starter, bmc: c.BMC},
		sites:        &sites{site: c.Site, operations: operations, log: c.Log},
		tokens:       &tokens{store: s.Tokens, log: c.Log, now: c.Now},
		upkeep:       &upkeep{Upkeep: c.Upkeep, log: c.Log},
		board: newBoard(boardConfig{
			changes: s.Changes, views: views, operations: s.Operations, status: status, engine: e, guard: c.Guard, log: c.Log,
		}),
	}
}

func (n nouns) routes() [][]httpapi.Route {
	return [][]httpapi.Route{
		n.status.routes(),
		n.tokens.routes(),
		n.upkeep.routes(),
		n.sites.routes(),
		n.machines.routes(),
		n.applications.routes(),
		n.templates.routes(),
		n.images.routes(),
		n.workflows.routes(),
		n.operations.routes(),
		n.genesis.routes(),
		n.bmc.routes(),
		n.board.routes(),
	}
}

// traceRequests stores, on every POST request, the context that trace returns.
func traceRequests(trace func(ctx context.Context, h http.Header, method, route string) context.Context) gin.HandlerFunc {
	return func(c *gin.Context) {
		if c.Request.Method == http.MethodPost {
			c.Request = c.Request.WithContext(trace(c.Request.Context(), c.Request.Header, c.Request.Method, c.FullPath()))
		}
	}
}
