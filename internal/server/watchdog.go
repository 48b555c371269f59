package server

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
)

// watchdogChecks returns what the watchdog asks: whether the inventory and the listeners answer. Temporal is left out: its process
// is supervised here.
func watchdogChecks(s *server) []keptsocket.Check {
	out := []keptsocket.Check{
		{Part: "inventory", Run: s.records.store.Answer},
		{Part: "operator API", Run: answers(hostnet.LocalURL(s.cfg) + "/healthz")},
	}
	if n := s.cfg.Netboot; s.netboot.on() {
		out = append(out, keptsocket.Check{Part: "boot services", Run: s.netboot.boot.Answer},
			keptsocket.Check{Part: "agent API", Run: answers("https://" + config.Join(n.Bind(s.netboot.address), n.Agent))})
		for _, port := range n.Metadata {
			out = append(out, keptsocket.Check{
				Part: "metadata", Run: answers("http://" + config.Join(n.Bind(s.netboot.address), port)),
			})
		}
	}
	return out
}

// answers returns a check that succeeds if this server answers at url, with any status.
func answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, err := httpclient.Head(ctx, url, true); err != nil {
			return fmt.Errorf("waiting for an answer: %w", err)
		}
		return nil
	}
}
