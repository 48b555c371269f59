package server

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// describeTemporalUI describes, for the API, the web UI that the embedded Temporal server serves on a Unix socket.
//
// bound tells whether this process has the port: a link must not lead a browser to another program that has it.
func describeTemporalUI(cfg config.Config, socket string, bound *atomic.Bool) api.TemporalUI {
	_, port, err := net.SplitHostPort(cfg.TemporalUIListen())
	if err != nil {
		return api.TemporalUI{} // there is no such listener
	}
	return api.TemporalUI{
		URL: cfg.Temporal.UIURL, Port: port, TLS: hostnet.OperatorsUseTLS(cfg), Bound: bound.Load,
		Dial: func(ctx context.Context) (net.Conn, error) { return temporalchild.DialUI(ctx, socket) },
	}
}

// serveTemporalUI serves Temporal's UI to operators until ctx ends. If the port is occupied, it logs an error and retries until the port
// is free: nothing else depends on the UI.
func serveTemporalUI(ctx context.Context, s *server) error {
	socket := listener.Socket{
		Name: "Temporal's UI", Addr: s.cfg.TemporalUIListen(), Key: "temporal.ui_listen", Handler: s.api.TemporalUI(), TLS: s.operatorTLS.Load(),
	}
	for logged := false; ; logged = true {
		l, err := listener.Bind(ctx, socket, s.host.Guard(), s.log)
		if err == nil {
			s.temporal.uiBound.Store(true)
			return l.Run(ctx)
		}
		if !logged && ctx.Err() == nil {
			s.log.Error("Temporal's UI is not served; trying again", "error", err)
		}
		if clock.Sleep(ctx, 5*time.Second) != nil {
			return nil
		}
	}
}
