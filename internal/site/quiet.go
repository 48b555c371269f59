package site

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/listener"
	"github.com/ingotmetal/ingot/internal/quiet"
	"github.com/ingotmetal/ingot/inventory"
)

// serveQuietly answers operators as a server that is not the site, until do ends.
func (h *Host) serveQuietly(ctx context.Context, why string, do func(context.Context) error) error {
	if why != "" {
		h.log.Warn("this server answers no machine", "why", why, "role", h.file.Site().Role)
	}

	handler, err := h.operators(h)
	if err != nil {
		return err
	}

	tlsConfig, err := listener.OperatorTLS(h.cfg, h.log)
	if err != nil {
		return err
	}

	l, err := h.bind(listener.Socket{
		Name: "operator API", Addr: h.cfg.Listen, Key: "listen", Handler: handler, TLS: tlsConfig,
	})
	if err != nil {
		return err
	}

	serving, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- l.Run(serving) }()
	err = do(ctx)
	cancel()
	if e := <-done; err == nil && ctx.Err() == nil {
		err = e
	}

	return err
}

// serveRetired sends operators to the new address, tells agents to hold, and
// forwards what machines ask of a metadata server. It answers nothing of its own.
func (h *Host) serveRetired(ctx context.Context, s Site) error {
	to := "elsewhere"
	if s.Successor != nil {
		to = s.Successor.Name + " (" + s.Successor.URL + ")"
	}

	listeners, err := h.listenForMachines(s)
	if err != nil {
		h.log.Warn("machines that were installed before the migration get no metadata here", "error", err)
	}

	agents, err := h.listenForAgents()
	if err != nil {
		h.log.Warn("agents cannot be told to hold", "error", err)
	}
	listeners = append(listeners, agents...)

	return h.serveQuietly(ctx, "retired: the site has moved to "+to+"; "+s.Why, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return h.untilNot(s.Role)(ctx) })
		for _, l := range listeners {
			g.Go(func() error { return l.Run(ctx) })
		}
		return g.Wait()
	})
}

// listenForMachines listens where machines know the metadata server, and forwards
// their requests to the successor. A port that cannot be bound is left out.
func (h *Host) listenForMachines(s Site) (out []listener.Listener, err error) {
	n := h.cfg.Netboot
	if !n.On() || s.Successor == nil {
		return nil, nil
	}

	address, err := hostnet.ProvisioningAddress(n)
	if err != nil {
		return nil, err
	}
	if err := h.loadCertificate(); err != nil {
		return nil, err
	}

	token, ok := h.tokens.of(s.Successor.Name)
	if !ok {
		return nil, fmt.Errorf("the token of peer %q is not in %s: %w", s.Successor.Name, h.tokens.path, inventory.ErrNotFound)
	}

	log := slog.New(quiet.Handler(h.log.With("part", "metadata").Handler(), time.Now))
	forward, err := Forward(*s.Successor, h.cert, token, log)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.forward = forward
	h.mu.Unlock()

	ports := slices.Concat(n.HTTP, n.Metadata)
	slices.Sort(ports)
	for _, p := range slices.Compact(ports) {
		l, err := h.bind(listener.Socket{
			Name: "metadata", Addr: config.Join(n.Bind(address), p), Key: "netboot.metadata", Handler: forward,
		})
		if err != nil {
			h.log.Warn("a port of the metadata server cannot be bound", "error", err)
			continue
		}
		out = append(out, l)
	}

	return out, nil
}

// metadata answers machines whose requests a retired peer forwards: the metadata
// server of this site, or, where the site has moved on, of its new host.
func (h *Host) metadata() http.Handler {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current != nil {
		if m := h.current.Metadata(); m != nil {
			return m
		}
	}
	return h.forward
}

// listenForAgents listens where the site's agents call; nil when no interface is
// configured. Agents are told to hold, never that their run has ended.
func (h *Host) listenForAgents() ([]listener.Listener, error) {
	n := h.cfg.Netboot
	if !n.On() {
		return nil, nil
	}

	address, err := hostnet.ProvisioningAddress(n)
	if err != nil {
		return nil, err
	}

	cert, err := identity.LoadCertificate(filepath.Join(filepath.Dir(h.cfg.KeyFile), identity.AgentFile))
	if err != nil {
		return nil, err
	}

	l, err := h.bind(listener.Socket{
		Name: "agent API", Addr: config.Join(n.Bind(address), n.Agent), Key: "netboot.agent",
		Handler: http.HandlerFunc(tellAgentToHold), TLS: listener.ServerTLS(cert),
	})
	if err != nil {
		return nil, err
	}

	return []listener.Listener{l}, nil
}

func tellAgentToHold(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"error":"the site has moved: hold","code":"unauthorized"}`) // the agent may have gone
}
