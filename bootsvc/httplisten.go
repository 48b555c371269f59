package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
)

const (
	maxHTTPConns  = 1024
	maxHTTPHeader = 16 << 10
)

// listen binds the HTTP listeners. Port 80 is often in use, so a port that cannot
// be bound is only a warning if another one works.
func (h *webFiles) listen(ctx context.Context) ([]net.Listener, error) {
	var out []net.Listener
	var errs []error
	for _, addr := range h.cfg.HTTPAddr {
		full := httpserve.WithHost(addr, h.cfg.bindAddress())
		l, err := keptsocket.Listen(ctx, "tcp4", full)
		if err != nil {
			err = fmt.Errorf("binding TCP %s for HTTP: %w (%s)", full, err,
				httpserve.BindRemedy(err, "provisioning HTTP addresses"))
			h.cfg.Log.Warn("an HTTP port cannot be bound", "address", full, "error", err)
			errs = append(errs, err)
			continue
		}
		if len(out) == 0 {
			h.scripts.urls.port.Store(uint32(l.Addr().(*net.TCPAddr).Port))
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

func (h *webFiles) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           h.cfg.Guard.Handler(h.requests.Handler(h.handler())),
		ReadHeaderTimeout: 10 * time.Second, // no ReadTimeout: it would end the context of a long stream
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    maxHTTPHeader,
		ErrorLog:          slog.NewLogLogger(h.cfg.Log.Handler(), slog.LevelWarn),
	}
	httpserve.Limit(srv, maxHTTPConns, func(source netip.Addr) bool { return h.decider.isAwaited(ctx, source) })
	// Streams may last an hour; a disconnected client resumes by Range, or retries.
	return httpserve.Run(ctx, "HTTP", srv, httpserve.Track(l), 2*time.Second)
}
