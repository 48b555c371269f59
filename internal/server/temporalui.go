package server

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
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

// uiListener serves Temporal's UI to operators.
type uiListener struct {
	socket listener.Socket
	bound  *atomic.Bool
	guard  *guard.Guard
	log    *slog.Logger
}

// run serves until ctx ends. If the port is occupied, run logs an error and retries until the port is free: nothing else depends
// on the UI.
func (u uiListener) run(ctx context.Context) error {
	for logged := false; ; logged = true {
		l, err := listener.Bind(ctx, u.socket, u.guard, u.log)
		if err == nil {
			u.bound.Store(true)
			return l.Run(ctx)
		}
		if !logged && ctx.Err() == nil {
			u.log.Error("Temporal's UI is not served; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Second):
		}
	}
}
