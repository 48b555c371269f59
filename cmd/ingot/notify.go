package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/notify"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

func notifyCmd(o *options) *cobra.Command {
	return group("notify", "Who is told when a person is needed", "  ingot notify test", &cobra.Command{
		Use: "test", Short: "Send a notice now, to try out whether notices arrive", Args: cobra.NoArgs, Example: "  ingot notify test",
		Long: `Send a notice now, past those that wait, and tell what the receiver says. The
receiver and the secret stand under notify: in the server's configuration.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			type answer struct {
				ID string `json:"id"`
			}
			a, err := ask[answer](cmd.Context(), c, "POST", path("notices", "test"), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, x answer) error {
				_, err := fmt.Fprintf(w, "The receiver took notice %s.\n", x.ID)
				return err
			})
		},
	})
}

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
		URL: n.URL, SecretFile: n.SecretFile, CAFile: n.TLSCA, Server: name, Version: build(), Outbox: s.store,
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

// noticeText is how it stands with notices in one line.
func noticeText(n api.NotifyStatus) string {
	parts := []string{n.Receiver}
	if n.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d wait, the oldest since %s", n.Waiting, when(n.Oldest)))
	}
	if n.Error != "" {
		parts = append(parts, "last attempt: "+inert(n.Error))
	}
	if n.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("%d were given up", n.Dropped))
	}
	if !n.Sent.IsZero() {
		parts = append(parts, "last taken "+ago(n.Sent))
	}
	return strings.Join(parts, "; ")
}
