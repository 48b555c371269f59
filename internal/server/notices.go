package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/observe/notify"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// noticeOptions returns the options with which the inventory stores notices, or none if no receiver is configured.
func noticeOptions(cfg config.Notify) []sqlite.Option {
	if cfg.URL == "" {
		return nil
	}
	return []sqlite.Option{sqlite.WithNotices(cfg.Events...)}
}

// notices are sent to the receiver of the configuration, if there is one.
type notices struct {
	sender *notify.Sender // nil = no receiver
	store  sqlite.Notices
	log    *slog.Logger
}

func (s *server) newNotices() (out notices, err error) {
	n := s.cfg.Notify
	out.store, out.log = s.records.store.Notices, s.log
	if n.URL == "" {
		return out, nil
	}
	out.sender, err = notify.New(notify.Config{
		URL:        n.URL,
		Format:     n.Format,
		SecretFile: n.SecretFile,
		CAFile:     n.TLSCA,
		Server:     s.host.ServerName(),
		Version:    s.Version,
		Outbox:     s.records.store.Notices,
		Log:        s.log.With("part", "notify"),
		Now:        time.Now,
	})
	return out, err
}

// dropUnsent closes all waiting notices if the configuration no longer has a receiver: they would wait forever. The log and the events
// still contain them.
func (n notices) dropUnsent(ctx context.Context) {
	if n.sender != nil {
		return
	}

	dropped, err := n.store.CloseNotices(ctx, "notify.url is not set on this server")
	switch {
	case err != nil:
		n.log.Warn("closing notices without a receiver", "error", err)
	case dropped > 0:
		n.log.Warn("dropped the waiting notices: notify.url is not set on this server", "notices", dropped)
	}
}

// test returns the function that sends a test notice, or nil without a receiver.
func (n notices) test() func(ctx context.Context, by string) (string, error) {
	if n.sender == nil {
		return nil
	}
	return n.sender.Test
}

func (n notices) status(ctx context.Context) *apitypes.NotifyStatus {
	if n.sender == nil {
		return nil
	}

	out := &apitypes.NotifyStatus{Receiver: n.sender.Receiver()}
	c, err := n.store.Notices(ctx)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.Waiting, out.Oldest, out.Sent, out.Dropped, out.Error = c.Waiting, c.Oldest, c.Sent, c.Dropped, c.Error
	return out
}
