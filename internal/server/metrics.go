package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/observe/metrics"
)

// requests counts HTTP requests by listener. The boot and metadata servers count their own.
type requests struct {
	operator, agent httpserve.Requests
}

// readMetrics configures the sources of the metrics. They are read at each scrape.
func (s *server) readMetrics(ctx context.Context) error {
	store := s.records.store
	last, err := store.Events.LastSeq(ctx)
	if err != nil {
		return err
	}

	c := metrics.Config{
		Version: s.Version, LastEvent: last,
		Store:   figures{store.Overview, store.Images, store.Notices, store.Views},
		Repairs: s.engine.Reconciler.Counts, Agents: s.engine.Agents.Counts, Retrying: s.do.Troubles.Count,
		Panics: s.host.Guard().Panics, Temporal: s.temporal.metrics, Intact: s.records.checked.intact,
		Requests:  map[string]func() httpserve.RequestCounts{"operator": s.requests.operator.Counts},
		Databases: map[string]string{"inventory": InventoryFile(s.cfg)},
		Disks:     s.disks, Synchronized: clock.Synchronized, Certificates: s.certificates,
	}
	if s.records.reserve.State().Size > 0 {
		c.ReserveHeld = func() bool { return s.records.reserve.State().Held }
	}
	if s.cfg.Backup.Dir != "" {
		c.LastBackup = func() time.Time { return s.backups.status().Verified }
	}
	if s.tracing != nil {
		c.Traces = s.tracing.Counts
	}
	if s.temporal.child != nil {
		c.Databases["temporal"] = backup.TemporalFile(s.cfg)
	}
	if s.netboot.on() {
		c.Boot = s.netboot.boot.Stats
		c.OtherDHCP = func() int { return len(s.netboot.boot.Rivals.Recent()) }
		c.Requests["agent"], c.Requests["metadata"] = s.requests.agent.Counts, s.netboot.metadata.Requests
	}

	s.metrics.Read(c)
	return nil
}

// disks returns the free space of the data directory's disk, and of the images' disk if it is another one.
func (s *server) disks() ([]metrics.Disk, error) {
	all, err := s.api.Disks()
	var out []metrics.Disk
	for i, d := range all {
		name := "data"
		if i > 0 {
			name = "images"
		}
		out = append(out, metrics.Disk{Name: name, Free: d.FreeBytes, MinFree: d.MinFreeBytes})
	}
	return out, err
}

// certificates returns when the certificates that this server presents expire: the certificates of its listeners ("operator", "agent"),
// and its client certificate for the Temporal cluster ("temporal"). If the files of the client certificate cannot be used, its time is
// 1970, because the next connection will fail.
func (s *server) certificates() map[string]time.Time {
	out := map[string]time.Time{}
	add := func(name string, c tls.Certificate) {
		if leaf, err := x509.ParseCertificate(c.Certificate[0]); err == nil { // cannot fail: it was parsed when it was loaded
			out[name] = leaf.NotAfter
		}
	}
	if t := s.operatorTLS.Load(); t != nil {
		add("operator", t.Certificates[0])
	}
	if s.netboot.on() {
		add("agent", s.secrets.agentTLS)
	}
	if s.cfg.Temporal.TLSCert != "" {
		if c, err := clientCertificate(s.cfg.Temporal); err == nil {
			add("temporal", *c)
		} else {
			out["temporal"] = time.Unix(0, 0)
		}
	}
	return out
}

// intact returns whether the last check of the inventory found no error, and whether a check has ended.
func (c *inventoryCheck) intact() (intact, done bool) {
	st := c.status()
	return st.Error == "", !st.Checked.IsZero()
}

// metrics returns the state of the connection to Temporal.
func (t *temporal) metrics() metrics.Temporal {
	t.mu.Lock()
	up := t.client != nil && t.err == nil
	t.mu.Unlock()
	m := metrics.Temporal{Up: up, Embedded: t.child != nil}
	if m.Embedded {
		m.Restarts = t.child.State().Restarts
	}
	return m
}
