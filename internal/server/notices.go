package server

import (
	"context"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/observe/notify"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// noticeOptions make the inventory write notices when there is a receiver.
func noticeOptions(cfg config.Notify) []sqlite.Option {
	if cfg.URL == "" {
		return nil
	}
	return []sqlite.Option{sqlite.WithNotices(cfg.Events...)}
}

// newNotifier makes the sender of notices; nil without a receiver.
func (s *server) newNotifier() (*notify.Sender, error) {
	n := s.cfg.Notify
	if n.URL == "" {
		return nil, nil
	}
	return notify.New(notify.Config{
		URL: n.URL, SecretFile: n.SecretFile, CAFile: n.TLSCA, Server: s.host.ServerName(), Version: s.Version, Outbox: s.records.store.Notices,
		Log: s.log.With("part", "notify"), Now: time.Now,
	})
}

// closeNotices drops the notices of an earlier configuration when there is no receiver
// now: they would wait forever. The log and the events list them.
func (s *server) closeNotices(ctx context.Context) {
	if s.notify != nil {
		return
	}

	n, err := s.records.store.Notices.CloseNotices(ctx, "notify.url is not set here")
	switch {
	case err != nil:
		s.log.Warn("closing notices without a receiver", "error", err)
	case n > 0:
		s.log.Warn("waiting notices were dropped: notify.url is not set here", "notices", n)
	}
}

// sendNotices sends notices until ctx ends, if there is a receiver.
func (s *server) sendNotices(ctx context.Context) error {
	if s.notify == nil {
		return nil
	}
	return s.notify.Run(ctx)
}

// testNotice sends a notice for test; nil without a receiver.
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
	c, err := s.records.store.Notices.Notices(ctx)
	if err != nil {
		n.Error = err.Error()
		return n
	}
	n.Waiting, n.Oldest, n.Sent, n.Dropped, n.Error = c.Waiting, c.Oldest, c.Sent, c.Dropped, c.Error
	return n
}
