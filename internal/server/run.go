package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/siterole"
)

// A part runs until its context ends. The first error of a part ends all parts.
type part struct {
	name string
	run  func(ctx context.Context) error
}

// Run serves until ctx ends, a part fails, or a hand-over has ended. The Temporal child stops last, because the workers, the API
// and the copy for a hand-over need it. DHCP and metadata do not depend on it.
func (s *server) Run(ctx context.Context) error {
	listeners, err := s.listen(ctx)
	if err != nil {
		return err
	}
	if err := keptsocket.Ready(); err != nil { // Ready is called only now, so that the operator's next command is answered
		return errors.Join(err, closeAll(listeners))
	}
	s.clock.Listening()
	// This process holds the ports, so no other server of this host can be making a backup in that directory.
	if err := os.RemoveAll(filepath.Join(s.cfg.DataDir, backupDir)); err != nil {
		s.log.Warn("removing an unfinished backup", "error", err)
	}

	s.stopChild = s.temporal.supervise(ctx)
	g, running := errgroup.WithContext(ctx)
	for _, p := range s.parts(running, listeners) {
		g.Go(func() error { return p.run(running) })
	}
	s.greet()
	s.watchdog.SetChecks(watchdogChecks(s)...)
	err = g.Wait()
	s.watchdog.SetChecks() // a hand-over closes the inventory and the listeners

	if move, ok := errors.AsType[*siterole.HandOverRequest](err); ok && ctx.Err() == nil {
		err = s.host.HandOver(ctx, s, move)
	}
	if e := s.stopChild(); err == nil {
		err = e
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}

	return err
}

// parts returns the parts that run concurrently. A hand-over ends the workers before ctx ends.
func (s *server) parts(ctx context.Context, listeners []listener.Listener) []part {
	working, stopWorking := context.WithCancel(ctx)
	stopped := make(chan struct{})
	stopWorkers := func() {
		stopWorking()
		<-stopped
	}

	parts := []part{
		{"engine", s.engine.Run},
		{"event pump", s.engine.Pump.Run},
		{"reconciler", s.engine.Reconciler.Run},
		{"virtual media", newEjector(s).run},
		{"clock", func(ctx context.Context) error {
			return s.clock.Run(ctx, func(ctx context.Context, set clock.Step) {
				s.engine.Reconciler.ClockSet(ctx, set.From, set.To)
			})
		}},
		{"workers", func(context.Context) error {
			defer close(stopped)
			defer stopWorking()
			return s.temporal.Run(working, s.do)
		}},
		{"inventory check", s.records.checkLarge},
		{"reserve", s.records.reserve.Run},
		{"old records", func(ctx context.Context) error { return s.records.keepSmall(ctx, s.api.RemoveUnusedImages) }},
		{"hand-over", func(ctx context.Context) error { return s.host.Mover.AwaitHandOver(ctx, s, stopWorkers) }},
		{"keys of another host", func(ctx context.Context) error { return s.host.ReplaceKeys(ctx, s) }},
	}

	for _, l := range listeners {
		parts = append(parts, part{l.Name, l.Run})
	}
	if s.cfg.TemporalUIListen() != "" {
		parts = append(parts, part{"Temporal's UI", func(ctx context.Context) error { return serveTemporalUI(ctx, s) }})
	}
	if s.notices.sender != nil {
		parts = append(parts, part{"notices", s.notices.sender.Run})
	}
	if s.cfg.Backup.Dir != "" {
		parts = append(parts, part{"stored backups", s.backups.watch})
	}
	if s.tracing != nil {
		parts = append(parts, part{"traces", s.tracing.Run})
	}
	if s.netboot.on() {
		parts = append(parts, part{"boot server", s.netboot.boot.Run}, part{"metadata server", s.netboot.metadata.Run},
			part{"index of the inventory", s.records.store.Machines.KeepIndex})
	}

	return parts
}

// listen binds the HTTP sockets of operators and agents before any part runs, so that an occupied port is reported first.
func (s *server) listen(ctx context.Context) (out []listener.Listener, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(out))
		}
	}()
	bind := func(name, addr, key string, h http.Handler, t *tls.Config) error {
		l, err := listener.Bind(ctx, listener.Socket{Name: name, Addr: addr, Key: key, Handler: h, TLS: t}, s.host.Guard(), s.log)
		if err == nil {
			out = append(out, l)
		}
		return err
	}

	operatorTLS, err := listener.OperatorTLS(s.cfg, s.log)
	if err != nil {
		return out, err
	}
	s.operatorTLS.Store(operatorTLS)
	if err := bind("operator API", s.cfg.Listen, "listen", s.requests.operator.Handler(s.api.Handler()), operatorTLS); err != nil {
		return out, err
	}
	if !s.netboot.on() {
		return out, nil
	}

	n := s.cfg.Netboot
	agentAddr := config.Join(n.Bind(s.netboot.address), n.Agent)
	return out, bind("agent API", agentAddr, "netboot.agent", s.requests.agent.Handler(s.agents), listener.ServerTLS(s.secrets.agentTLS))
}

func closeAll(listeners []listener.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// greet prints or logs the addresses of the server.
func (s *server) greet() {
	netboot := "off: run ingot init"
	if s.netboot.on() {
		netboot = describeNetboot(s.cfg.Netboot, s.netboot.address)
	}
	if s.Out == nil {
		s.log.Info("the server answers", "version", s.Version, "url", hostnet.LocalURL(s.cfg), "netboot", netboot)
		return
	}

	_, err := fmt.Fprintf(s.Out, "ingot %s: %s (ingot login-link opens the page)\nnetboot %s\n", s.Version, hostnet.LocalURL(s.cfg), netboot)
	if err != nil {
		s.log.Warn("greeting", "error", err)
	}
}

// describeNetboot returns a description of the network on which machines are answered.
func describeNetboot(n config.Netboot, address netip.Addr) string {
	if n.RelayOnly {
		return fmt.Sprintf("only through the relays %s, as %s", strings.Join(n.Relays, ", "), address)
	}
	return fmt.Sprintf("on %s as %s", strings.Join(n.Interfaces, ", "), address)
}
