// Package metadatasvc is the HTTP metadata service for installers and installed systems. It serves an EC2-style tree
// and a NoCloud seed for cloud-init, and /metadata for Tinkerbell's rootio action. It receives phone-home requests and
// installers' reports.
//
// A client that is known only by its source address gets no secrets, because another host on the network could use the same address;
// inventory.Machine.UserDataByAddress is the only exception. Secrets are served under a path that only the machine of the run knows, and
// only while the secrets window of the run is open.
package metadatasvc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
)

// New checks cfg and returns a Server for it. If cfg is invalid, the error is an inventory.Problems.
func New(cfg Config, machines Machines, journal Journal) (*Server, error) {
	var p inventory.Problems
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Any host on the network can cause these log lines, so limit their rate.
	cfg.Log = slog.New(quietlog.Handler(cfg.Log.Handler(), cfg.Now))
	if cfg.Guard == nil {
		cfg.Guard = guard.New(cfg.Log)
	}
	if n := len(cfg.Key); n > 0 && n < 16 {
		p.Add("key", "run ingot init", "the key of capabilities has %d bytes; must be at least 16", n)
	}
	if len(cfg.Addrs) == 0 {
		cfg.Addrs = []string{":7172", ":50061"}
	}
	if cfg.URL == "" && cfg.Address.IsValid() {
		if _, port, err := net.SplitHostPort(cfg.Addrs[0]); err == nil {
			cfg.URL = "http://" + net.JoinHostPort(cfg.Address.String(), port)
		}
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.HasSuffix(cfg.URL, "/") {
		p.Add("url", "http://ADDRESS:7172", "invalid base URL %q", cfg.URL)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}

	return &Server{
		cfg:      cfg,
		machines: machines,
		journal:  journal,
		log:      cfg.Log,
		now:      cfg.Now,
		grace:    2 * time.Second,
		fetches:  newFetches(journal, cfg.Log, cfg.Now),
	}, nil
}

// Run serves on the configured addresses until ctx ends, and then returns nil. If it cannot listen on an address, it returns an error that
// says what to do.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var listeners []net.Listener
	for _, addr := range s.cfg.Addrs {
		addr = httpserve.WithHost(addr, s.cfg.Address)
		l, err := keptsocket.Listen(ctx, "tcp", addr)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close() // ignored, because the error of Listen is returned
			}
			return fmt.Errorf("binding TCP %s for metadata: %w (%s)", addr, err,
				httpserve.BindRemedy(err, "metadata addresses"))
		}
		listeners = append(listeners, l)
	}

	// Events are written until all listeners have ended, so that the events of the last requests are written, too.
	writer, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var writing sync.WaitGroup
	writing.Go(func() { s.fetches.run(writer) })
	defer writing.Wait()
	defer stopWriting()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.serve(ctx, l) }()
	}
	var errs []error
	for range listeners {
		errs = append(errs, <-ended)
		cancel() // if one listener fails, stop the others
	}
	return errors.Join(errs...)
}

// Requests returns counts of the requests that were served since Run was called.
func (s *Server) Requests() httpserve.RequestCounts { return s.requests.Counts() }

func (s *Server) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.cfg.Guard.Handler(s.requests.Handler(s.Handler())),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 60 * time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	httpserve.Limit(srv, maxConns, func(source netip.Addr) bool { return s.isAwaited(ctx, source) })
	return httpserve.Run(ctx, "metadata", srv, httpserve.Track(l), s.grace)
}

const (
	maxConns      = 1024
	awaitedLookup = 200 * time.Millisecond
)

// isAwaited reports whether source is the address of a machine that a run owns. It is called for a new connection when maxConns are open:
// connections of such machines have priority.
func (s *Server) isAwaited(ctx context.Context, source netip.Addr) bool {
	defer s.cfg.Guard.Recover("the source of a connection")
	ctx, cancel := context.WithTimeout(ctx, awaitedLookup)
	defer cancel()
	_, g, err := s.machines.MachineByAddress(ctx, source)
	return err == nil && g.Run != ""
}
