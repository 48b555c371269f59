package siterole

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// serveQuietly answers operators, but no machine, while do runs. It returns the error of do or of the listener. It reports to the service
// manager that the service is ready, because do may run for days.
func (h *Host) serveQuietly(ctx context.Context, why string, do func(context.Context) error) error {
	return h.serveOperators(ctx, why, func(ctx context.Context) error {
		if err := keptsocket.Ready(); err != nil {
			return err
		}
		return do(ctx)
	})
}

// serveOperators does the same as [Host.serveQuietly], but does not report that the service is ready, because do usually ends soon. After
// it, the caller opens the databases, and during that time no operator API listens. The service is reported as ready when the active
// server runs, or when do asks the operator (Source.Asked).
func (h *Host) serveOperators(ctx context.Context, why string, do func(context.Context) error) error {
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

	l, err := h.bind(ctx, listener.Socket{
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

// serveRetired tells operators the new address of the site, tells agents to hold (wait), and forwards metadata requests of machines.
func (h *Host) serveRetired(ctx context.Context, s Site) error {
	to := "elsewhere"
	if s.Successor != nil {
		to = s.Successor.Name + " (" + s.Successor.URL + ")"
	}

	listeners := h.listenRetired(ctx, s)
	return h.serveQuietly(ctx, "retired: the site has moved to "+to+"; "+s.Why, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return h.untilNot(s.Role)(ctx) })
		for _, l := range listeners {
			g.Go(func() error { return l.Run(ctx) })
		}
		return g.Wait()
	})
}

// listenRetired listens on the addresses that machines and agents know. Metadata requests are forwarded. Agents are told to hold (wait),
// and never that their run has ended. If a port cannot be bound, that is only logged.
func (h *Host) listenRetired(ctx context.Context, s Site) (out []listener.Listener) {
	n := h.cfg.Netboot
	if !n.On() {
		return nil
	}
	address, err := hostnet.ProvisioningAddress(n)
	if err != nil {
		h.log.Warn("this retired server does not answer machines and agents", "error", err)
		return nil
	}

	var sockets []listener.Socket
	if forward, err := h.forwardToSuccessor(s); err != nil {
		h.log.Warn("metadata requests of machines that were installed before the migration are not forwarded",
			"error", err)
	} else {
		ports := slices.Concat(n.HTTP, n.Metadata)
		slices.Sort(ports)
		for _, p := range slices.Compact(ports) {
			sockets = append(sockets, listener.Socket{
				Name: "metadata", Addr: config.Join(n.Bind(address), p), Key: "netboot.metadata", Handler: forward,
			})
		}
	}
	if cert, err := identity.LoadCertificate(besideKeys(h.cfg, identity.AgentFile)); err != nil {
		h.log.Warn("the agent API of this retired server is not served, so agents do not learn that they must hold", "error", err)
	} else {
		sockets = append(sockets, listener.Socket{
			Name: "agent API", Addr: config.Join(n.Bind(address), n.Agent), Key: "netboot.agent",
			Handler: http.HandlerFunc(answerHold), TLS: listener.ServerTLS(cert),
		})
	}

	for _, x := range sockets {
		l, err := h.bind(ctx, x)
		if err != nil {
			h.log.Warn("cannot bind a port of this retired server", "error", err)
			continue
		}
		out = append(out, l)
	}
	return out
}

// forwardToSuccessor returns the handler that forwards metadata requests to the new host, and stores that handler in h.forward.
func (h *Host) forwardToSuccessor(s Site) (http.Handler, error) {
	if s.Successor == nil {
		return nil, fmt.Errorf("the new host of the site is unknown: %w", inventory.ErrNotFound)
	}
	if err := h.Peers.loadCertificate(); err != nil {
		return nil, err
	}
	token, ok := h.Peers.tokens.of(s.Successor.Name)
	if !ok {
		return nil, fmt.Errorf("the token of peer %q is not in %s: %w", s.Successor.Name, h.Peers.tokens.path, inventory.ErrNotFound)
	}

	log := slog.New(quietlog.Handler(h.log.With("part", "metadata").Handler(), time.Now))
	forward, err := Forward(*s.Successor, h.Peers.cert, token, log)
	if err != nil {
		return nil, err
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	h.forward = forward
	return forward, nil
}

// metadata returns the handler for requests that a retired peer forwards. It is the metadata server of this host; if this host is
// retired, too, it forwards the requests to the next host. nil means that there is neither.
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

func answerHold(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"error":"the site has moved: hold","code":"unauthorized"}`) // the agent may have disconnected
}
