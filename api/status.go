package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// KeyStore checks whether the server's secret key opens the stored secrets. It can also list the secrets that the key
// does not open.
type KeyStore interface {
	KeyCheck(ctx context.Context) error
	SecretsUnreadable(ctx context.Context) ([]string, error)
}

// Process holds facts about the server process that are not stored in the inventory.
type Process struct {
	Version string
	// Status returns further parts of the answer to GET /v1/status. The function may be nil.
	Status func(ctx context.Context) StatusExtra
	// Restored returns the backup from which this server was restored. If the server was not restored, the field Backup
	// of the result is "". The function may be nil.
	Restored func() inventory.Restore
	// NoSecretKey is set if the key file is missing, so that stored secrets cannot be opened.
	NoSecretKey bool
	// Retrying returns the activities of a run that have failed and are being retried. The function may be nil.
	Retrying func(run string) []string
}

// StatusExtra holds the parts of the status that the function Process.Status returns.
type StatusExtra struct {
	Temporal  apitypes.TemporalStatus // without Ready
	Netboot   apitypes.NetbootStatus
	Notify    *apitypes.NotifyStatus // nil if notices are off
	Inventory apitypes.InventoryStatus
	Backup    *apitypes.BackupStatus // nil if the server stores no backups
}

type statusRoutes struct {
	stores  Stores
	engine  *engine.Engine
	views   *views
	space   *space
	process Process
	site    Site
	guard   *guard.Guard
	now     func() time.Time
	started time.Time
}

func (s *statusRoutes) routes() []httpapi.Route {
	return []httpapi.Route{
		{
			Method:  "GET",
			Path:    "/v1/openapi.yaml",
			Needs:   inventory.RoleRead,
			Handler: func(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", openapi) },
		},
		{
			Method: "GET",
			Path:   "/v1/status",
			Needs:  inventory.RoleRead,
			Handler: httpapi.Get(func(ctx context.Context, _ httpapi.Empty) (apitypes.Status, error) {
				return s.read(ctx)
			}),
		},
		{Method: "GET", Path: "/v1/secrets", Needs: inventory.RoleAdmin, Handler: httpapi.Get(s.getSecrets)},
	}
}

// read returns the current status.
func (s *statusRoutes) read(ctx context.Context) (apitypes.Status, error) {
	st := s.readProcess(ctx)
	var err error
	if st.Machines, err = s.stores.Views.MachineCount(ctx); err != nil {
		return st, err
	}
	open, err := s.stores.Views.OpenRuns(ctx)
	if err != nil {
		return st, err
	}
	st.OpenWorkflows = len(open)
	if s.process.Restored != nil && s.process.Restored().Backup != "" {
		r := s.process.Restored()
		st.Restored = &apitypes.RestoredStatus{Backup: r.Backup, Taken: r.Taken, At: r.At, Held: openHeldRuns(r.Held, open)}
	}
	if st.Retrying, err = s.readRetrying(ctx, open); err != nil {
		return st, err
	}
	if err := s.readWaiting(ctx, &st); err != nil {
		return st, err
	}
	if s.site != nil {
		x, err := s.site.SiteStatus(ctx)
		if err != nil {
			return st, err
		}
		if len(x.Peers) > 0 || x.Activated != "" || x.Intake != "" || x.HandOver != nil {
			x = showPeers(ctx, x)
			st.Site = &x
		}
	}
	if st.Space, err = s.space.disks(); err != nil {
		return st, err
	}
	st.Secrets, err = s.keyState(ctx)

	return st, err
}

// readProcess returns the part of the status that is not read from the inventory.
func (s *statusRoutes) readProcess(ctx context.Context) apitypes.Status {
	now := s.now()
	extra := StatusExtra{Netboot: apitypes.NetbootStatus{Off: true}}
	if s.process.Status != nil {
		extra = s.process.Status(ctx)
	}
	_, err := s.engine.Runs.Client()
	st := apitypes.Status{
		Version: s.process.Version, UptimeSeconds: int64(now.Sub(s.started) / time.Second), Time: now.UTC(),
		Temporal: extra.Temporal, Netboot: extra.Netboot, Notify: extra.Notify, Inventory: extra.Inventory, Backup: extra.Backup,
		Reconcile: s.engine.Reconciler.Counts(), Panics: s.guard.Panics(),
	}
	if st.Temporal.Ready = err == nil && extra.Temporal.Error == ""; st.Temporal.Ready {
		st.Temporal.Since = time.Time{}
	}
	if st.Netboot.Interfaces == nil {
		st.Netboot.Interfaces = []string{}
	}

	return st
}

// openHeldRuns returns those held runs that are also in the list of open runs.
func openHeldRuns(held []inventory.HeldRun, open []inventory.OpenRun) []inventory.HeldRun {
	byRun := map[string]inventory.HeldRun{}
	for _, h := range held {
		byRun[h.Run] = h
	}
	out := []inventory.HeldRun{}
	for _, w := range open {
		if h, ok := byRun[w.Run]; ok {
			out = append(out, h)
		}
	}

	return out
}

// maxRetrying limits the list of retried activities in the status.
const maxRetrying = 10

// readRetrying returns up to maxRetrying activities that have failed and are being retried in open runs, each as
// "machine: activity". It reads a run's record only if the run has such activities, because such runs are few.
func (s *statusRoutes) readRetrying(ctx context.Context, open []inventory.OpenRun) ([]string, error) {
	var out []string
	for _, r := range open {
		if s.process.Retrying == nil || len(s.process.Retrying(r.Run)) == 0 {
			continue
		}
		w, err := s.engine.Runs.Find(ctx, r.Run)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, activity := range s.views.retriesOf(w) {
			if out = append(out, w.Machine+": "+activity); len(out) == maxRetrying {
				return out, nil
			}
		}
	}

	return out, nil
}

// maxWaiting limits how many waiting runs the status lists. The same limit applies to waiting operations.
const maxWaiting = 10

// readWaiting adds to st the runs and operations that wait for the operator, oldest first.
func (s *statusRoutes) readWaiting(ctx context.Context, st *apitypes.Status) error {
	oldest := inventory.RunPage{Oldest: true}
	runs, err := s.stores.Workflows.Workflows(ctx, inventory.WorkflowFilter{
		State: inventory.FilterWaiting, RunPage: oldest, Limit: maxWaiting + 1,
	})
	if err != nil {
		return err
	}
	operations, err := s.stores.Operations.Operations(ctx, inventory.OperationFilter{
		State: inventory.FilterWaiting, RunPage: oldest, Limit: maxWaiting + 1,
	})
	if err != nil {
		return err
	}

	st.MoreWaiting = len(runs) > maxWaiting || len(operations) > maxWaiting
	for _, w := range runs[:min(len(runs), maxWaiting)] {
		x := apitypes.WaitingStatus{Name: w.Machine, Type: w.Type, Run: w.Run, Since: w.Updated, Text: w.Message, Next: w.Next}
		st.Waiting = append(st.Waiting, withQuestion(x, w.Question))
	}
	for _, o := range operations[:min(len(operations), maxWaiting)] {
		x := apitypes.WaitingStatus{Name: o.ID, Type: o.Type, Run: o.Run, Since: o.Updated, Text: o.Message, Next: o.Next}
		st.Waiting = append(st.Waiting, withQuestion(x, o.Question))
	}
	return nil
}

// withQuestion returns w with the time and the text of the question q. If q is nil, it returns w unchanged: the run
// asks nothing, and only waits until the operator presses a button.
func withQuestion(w apitypes.WaitingStatus, q *inventory.Question) apitypes.WaitingStatus {
	if q != nil {
		w.Since, w.Text = q.Since, q.Text
	}
	return w
}

// keyState returns "ok" if the secret key opens the stored secrets, "missing" if there is no key, and "wrong" if the
// key does not open them.
func (s *statusRoutes) keyState(ctx context.Context) (string, error) {
	if s.process.NoSecretKey {
		return "missing", nil
	}
	err := s.stores.Keys.KeyCheck(ctx)
	switch {
	case errors.Is(err, inventory.ErrSealed):
		return "wrong", nil
	case err != nil:
		return "", fmt.Errorf("checking the secret key: %w", err)
	}
	return "ok", nil
}

func (s *statusRoutes) getSecrets(ctx context.Context, _ httpapi.Empty) (apitypes.SecretsStatus, error) {
	state, err := s.keyState(ctx)
	if err != nil || state == "ok" {
		return apitypes.SecretsStatus{State: state, Unreadable: []string{}}, err
	}
	names, err := s.stores.Keys.SecretsUnreadable(ctx)

	return apitypes.SecretsStatus{State: state, Unreadable: append([]string{}, names...)}, err
}

// servePage serves the dashboard for unknown paths. A path under /v1, /agent or /login gets the 404 of the API instead.
func servePage(dashboard http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		for _, prefix := range []string{"/v1", "/agent", "/login"} {
			if p := c.Request.URL.Path; p == prefix || strings.HasPrefix(p, prefix+"/") {
				httpapi.Fail(c, httpapi.NotFound())
				return
			}
		}
		c.Status(http.StatusOK) // gin sets 404 before it calls this handler
		dashboard.ServeHTTP(c.Writer, c.Request)
	}
}
