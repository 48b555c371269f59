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
	Notify        *NotifyStatus  `json:"notify,omitempty"`
	Reconcile     Counts         `json:"reconcile"`
	// Panics counts since the start what input of the network has made panic: a
	// packet or a request each, and a defect of this program.
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

// maxOpen is how many open workflows a count or a snapshot looks at.
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
	st.Notify = extra.Notify
	if st.Netboot = extra.Netboot; st.Netboot.Interfaces == nil {
		st.Netboot.Interfaces = []string{}
	}
	ms, err := s.cfg.Store.Machines(ctx)
	if err != nil {
		return st, err
	}
	ws, err := s.cfg.Store.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: maxOpen})
	if err != nil {
		return st, err
	}
	st.Machines, st.OpenWorkflows = len(ms), len(ws)
	if r := s.cfg.Restored; r.Backup != "" {
		st.Restored = &RestoredStatus{Backup: r.Backup, Taken: r.Taken, At: r.At, Held: append([]inventory.HeldRun{}, s.heldOpen(ws)...)}
	}
	for _, w := range ws {
		for _, r := range s.retrying(w) {
			if len(st.Retrying) < 10 {
				st.Retrying = append(st.Retrying, w.Machine+": "+r)
			}
		}
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
