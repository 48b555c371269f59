package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
)

// BackupRequest says what goes into a backup.
type BackupRequest struct {
	// Passphrase wraps the keys; zero: they stay out of it.
	Passphrase inventory.Secret
	Images     bool // the files of the images, too
}

// An Archive is a backup that lies ready on the server. Close removes it.
type Archive interface {
	io.WriterTo
	io.Closer
	ID() string
}

// backup copies both databases while everything goes on, and sends them as one
// archive. Who asks for it writes down what the archive says of itself.
func (s *Server) backup(c *gin.Context) {
	var q struct {
		Passphrase inventory.Secret `json:"passphrase"`
		WithoutKey bool             `json:"withoutKey"`
		Images     bool             `json:"images"`
	}
	if err := body(c, &q, false); err != nil {
		s.fail(c, err)
		return
	}
	if q.WithoutKey != q.Passphrase.IsZero() {
		s.fail(c, invalid("passphrase", "give passphrase, or withoutKey", "the keys are wrapped with a passphrase, or left out of the backup"))
		return
	}
	if s.cfg.Backup == nil {
		s.fail(c, fmt.Errorf("this server has nothing to back up: %w", errUnavailable))
		return
	}
	a, err := s.cfg.Backup(c.Request.Context(), BackupRequest{Passphrase: q.Passphrase, Images: q.Images})
	if err != nil {
		s.fail(c, err)
		return
	}
	defer func() {
		if err := a.Close(); err != nil {
			s.cfg.Log.Error("removing what a backup was made of", "backup", a.ID(), "error", err)
		}
	}()
	c.Header("Content-Type", "application/x-tar")
	c.Header("Content-Disposition", "attachment; filename="+strconv.Quote("ingot-"+a.ID()+".tar"))
	c.Status(http.StatusOK)
	n, err := a.WriteTo(c.Writer)
	if err != nil {
		// The archive has no end then, which whoever reads it notices.
		s.cfg.Log.Error("sending a backup", "backup", a.ID(), "error", err)
		c.Abort()
		return
	}
	s.cfg.Log.Info("a backup was made", "backup", a.ID(), "bytes", n, "by", by(c))
}

// heldOpen returns those of the open runs that are held.
func (s *Server) heldOpen(open []inventory.OpenRun) []inventory.HeldRun {
	held := map[string]inventory.HeldRun{}
	for _, h := range s.cfg.Restored.Held {
		held[h.Run] = h
	}
	var out []inventory.HeldRun
	for _, w := range open {
		if h, ok := held[w.Run]; ok {
			out = append(out, h)
		}
	}
	return out
}

// settle cancels runs that are held and over by their record: Temporal's copy
// is a little older than the inventory's. They would ask about a machine whose
// run has ended, and keep its name from the next one.
func (r *Reconciler) settle(ctx context.Context, tc client.Client) error {
	for _, h := range r.Held {
		if r.settled[h.Run] {
			continue
		}
		w, err := r.Store.Workflow(ctx, h.Run)
		if err != nil || !inventory.Final(w.State) {
			continue // it is seen to as an open one
		}
		e, err := r.look(ctx, tc, h.Workflow, h.Run)
		if err != nil {
			return err
		}
		if e.known && !r.over(h.Run, e) {
			if err := cancel(ctx, tc, h.Workflow, h.Run); err != nil {
				return fmt.Errorf("cancelling run %q, which is over: %w", h.Run, err)
			}
			r.Log.Warn("cancelled a held run that was over when the backup was made", "machine", h.Machine, "run", h.Run)
			continue
		}
		if r.settled == nil {
			r.settled = map[string]bool{}
		}
		r.settled[h.Run] = true
	}
	return nil
}

// lostKind is the kind of event by which a run hears that it has no grant any more.
func (r *Reconciler) lostKind(run string) string {
	for _, h := range r.Held {
		if h.Run == run {
			return inventory.EventHeld
		}
	}
	return inventory.EventFenced
}
