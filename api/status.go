package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
)

type statusStore interface {
	MachineCount(ctx context.Context) (int, error)
	OpenRuns(ctx context.Context) ([]inventory.OpenRun, error)
	KeyCheck(ctx context.Context) error
	SecretsUnreadable(ctx context.Context) ([]string, error)
}

// StatusExtra is what only the process knows.
type StatusExtra struct {
	TemporalAddress string
	TemporalUI      string
	TemporalError   string // why Temporal is not ready
	Netboot         NetbootStatus
	Notify          *NotifyStatus // nil: nobody is told of anything
	Inventory       InventoryStatus
}

// InventoryStatus says what a check of the whole database found.
type InventoryStatus struct {
	Checked time.Time `json:"checked,omitzero"` // zero: the check is under way
	Error   string    `json:"error,omitempty"`  // what is damaged, and what to do
}

// NotifyStatus says how it stands with notices.
type NotifyStatus struct {
	Receiver string    `json:"receiver"` // without path
	Waiting  int       `json:"waiting"`  // to be delivered
	Oldest   time.Time `json:"oldest,omitzero"`
	Sent     time.Time `json:"sent,omitzero"` // the last one
	Dropped  int       `json:"dropped,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last attempt
}

// NetbootStatus says where DHCP answers.
type NetbootStatus struct {
	Interfaces []string `json:"interfaces"`
	// Relays, of a server that answers relays alone, and its Address.
	Relays  []string `json:"relays,omitempty"`
	Address string   `json:"address,omitempty"`
	Off     bool     `json:"off"`
	Message string   `json:"message,omitempty"`
}

// Status is what GET /v1/status answers.
type Status struct {
	Version       string         `json:"version"`
	UptimeSeconds int64          `json:"uptimeSeconds"`
	Temporal      TemporalStatus `json:"temporal"`
	Netboot       NetbootStatus  `json:"netboot"`
	Machines      int            `json:"machines"`
	OpenWorkflows int            `json:"openWorkflows"`
	Secrets       string         `json:"secrets"` // ok | missing | wrong
	// Inventory is what the check of the database found at the start.
	Inventory InventoryStatus `json:"inventory"`
	Notify    *NotifyStatus   `json:"notify,omitempty"`
	Reconcile Counts          `json:"reconcile"`
	// Panics counts packets and requests whose handling panicked since the start.
	// Each is a bug in Ingot.
	Panics int64 `json:"panics,omitempty"`
	// Retrying is what of open runs fails and is tried again, at most ten.
	Retrying []string `json:"retrying,omitempty"`
	// Restored is the backup from which the site was restored, and Held which of
	// the runs that it had under way wait for a person.
	Restored *RestoredStatus `json:"restored,omitempty"`
	// Site is this server among its peers, if it has any.
	Site *SiteStatus `json:"site,omitempty"`
	// Space is that of DataDir, and of ImageDir if it lies on another disk.
	Space []SpaceStatus `json:"space"`
	Time  time.Time     `json:"time"`
}

// RestoredStatus says from which backup a site was restored.
type RestoredStatus struct {
	Backup string              `json:"backup"`
	Taken  time.Time           `json:"taken"`
	At     time.Time           `json:"at"`
	Held   []inventory.HeldRun `json:"held"` // those that are open yet
}

// TemporalStatus says whether Temporal is ready.
type TemporalStatus struct {
	Ready   bool   `json:"ready"`
	Address string `json:"address,omitempty"`
	UI      string `json:"ui,omitempty"`
	Error   string `json:"error,omitempty"`
}

// maxOpen is how many open workflows a list looks at.
const maxOpen = 10000

func (s *Server) statusNow(ctx context.Context) (Status, error) {
	now := s.cfg.Now()
	st := Status{Version: s.cfg.Version, UptimeSeconds: int64(now.Sub(s.started) / time.Second), Time: now.UTC(), Reconcile: s.recon.Counts(), Panics: s.cfg.Guard.Panics()}
	var extra StatusExtra
	if s.cfg.Status != nil {
		extra = s.cfg.Status(ctx)
	} else {
		extra.Netboot.Off = true
	}
	_, ready := s.cfg.Temporal()
	st.Temporal = TemporalStatus{Ready: ready, Address: extra.TemporalAddress, UI: extra.TemporalUI}
	if !ready {
		st.Temporal.Error = extra.TemporalError
	}
	st.Notify, st.Inventory = extra.Notify, extra.Inventory
	if st.Netboot = extra.Netboot; st.Netboot.Interfaces == nil {
		st.Netboot.Interfaces = []string{}
	}
	var err error
	if st.Machines, err = s.cfg.Store.MachineCount(ctx); err != nil {
		return st, err
	}
	open, err := s.cfg.Store.OpenRuns(ctx)
	if err != nil {
		return st, err
	}
	st.OpenWorkflows = len(open)
	if r := s.cfg.Restored; r.Backup != "" {
		st.Restored = &RestoredStatus{Backup: r.Backup, Taken: r.Taken, At: r.At, Held: append([]inventory.HeldRun{}, s.heldOpen(open)...)}
	}
	if st.Retrying, err = s.retried(ctx, open); err != nil {
		return st, err
	}
	if s.cfg.Site != nil {
		x, err := s.cfg.Site.SiteStatus(ctx)
		if err != nil {
			return st, err
		}
		if len(x.Peers) > 0 || x.Activated != "" || x.Intake != "" || x.HandOver != nil {
			st.Site = &x
		}
	}
	if st.Space, err = s.spaces(); err != nil {
		return st, err
	}
	st.Secrets, err = s.keyState(ctx)
	return st, err
}

// maxRetrying is how much the status says of what is tried again.
const maxRetrying = 10

// retried returns what of open runs fails and is tried again. Only their records are read: there are few.
func (s *Server) retried(ctx context.Context, open []inventory.OpenRun) ([]string, error) {
	var out []string
	for _, r := range open {
		if s.cfg.Retrying == nil || len(s.cfg.Retrying(r.Run)) == 0 {
			continue
		}
		w, err := s.cfg.Store.Workflow(ctx, r.Run)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, what := range s.retrying(w) {
			if out = append(out, w.Machine+": "+what); len(out) == maxRetrying {
				return out, nil
			}
		}
	}
	return out, nil
}

// keyState tells whether stored secrets can be opened.
func (s *Server) keyState(ctx context.Context) (string, error) {
	if s.cfg.NoSecretKey {
		return "missing", nil
	}
	err := s.cfg.Store.KeyCheck(ctx)
	switch {
	case errors.Is(err, inventory.ErrSealed):
		return "wrong", nil
	case err != nil:
		return "", fmt.Errorf("checking the secret key: %w", err)
	}
	return "ok", nil
}

func (s *Server) status(c *gin.Context) {
	st, err := s.statusNow(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, st)
}

func (s *Server) secrets(c *gin.Context) {
	state, err := s.keyState(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	unreadable := []string{}
	if state != "ok" {
		names, err := s.cfg.Store.SecretsUnreadable(c.Request.Context())
		if err != nil {
			s.fail(c, err)
			return
		}
		unreadable = append(unreadable, names...)
	}
	c.JSON(http.StatusOK, gin.H{"state": state, "unreadable": unreadable})
}

// page serves the dashboard; what looks like a route answers as one.
func (s *Server) page(dashboard http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		for _, prefix := range []string{"/v1", "/agent", "/login"} {
			if p := c.Request.URL.Path; p == prefix || strings.HasPrefix(p, prefix+"/") {
				notFound(c)
				return
			}
		}
		c.Status(http.StatusOK) // gin comes here with 404
		dashboard.ServeHTTP(c.Writer, c.Request)
	}
}
