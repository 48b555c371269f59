package server

import (
	"context"
	"os"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/notify"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// noticeOptions make the inventory write notices when there is somebody to tell.
func noticeOptions(cfg config.Notify) []sqlite.Option {
	if cfg.URL == "" {
		return nil
	}
	return []sqlite.Option{sqlite.WithNotices(cfg.Events...)}
}

// notifier makes what sends notices; nil: nobody is told.
func (s *server) notifier() (*notify.Sender, error) {
	n := s.cfg.Notify
	if n.URL == "" {
		return nil, nil
	}
	name := s.cfg.Site.Name
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	return notify.New(notify.Config{
		URL: n.URL, SecretFile: n.SecretFile, CAFile: n.TLSCA, Server: name, Version: s.version, Outbox: s.store,
		Log: s.log.With("part", "notify"), Now: time.Now,
	})
}

// closeNotices gives up what waits of a server that told somebody, when this
// one tells nobody: it would wait for ever. What is lost stands in the log and
// among the events.
func (s *server) closeNotices(ctx context.Context) {
	if s.notify != nil {
		return
	}
	n, err := s.store.CloseNotices(ctx, "notify.url is not set here")
	switch {
	case err != nil:
		s.log.Warn("closing notices that nobody can send", "error", err)
	case n > 0:
		s.log.Warn("notices that waited were given up: notify.url is not set here", "notices", n)
	}
}

// sendNotices sends them until ctx ends; without a receiver there is nothing
// to do.
func (s *server) sendNotices(ctx context.Context) error {
	if s.notify == nil {
		return nil
	}
	return s.notify.Run(ctx)
}

// testNotice is nil when nobody is told.
func (s *server) testNotice() func(context.Context) (string, error) {
	if s.notify == nil {
		return nil
	}
	return s.notify.Test
}

func (s *server) noticeStatus(ctx context.Context) *api.NotifyStatus {
	if s.notify == nil {
		return nil
	}
	n := &api.NotifyStatus{Receiver: s.notify.Receiver()}
	c, err := s.store.Notices(ctx)
	if err != nil {
		n.Error = err.Error()
		return n
	}
	n.Waiting, n.Oldest, n.Sent, n.Dropped, n.Error = c.Waiting, c.Oldest, c.Sent, c.Dropped, c.Error
	return n
}
