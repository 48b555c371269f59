package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/worker-agent/facts"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// discoverEvery is the pause between two reports, unless the server's response names another one.
const discoverEvery = time.Minute

// discover reports the hardware of this unknown machine again and again. Once the server knows the machine or refuses to discover
// it, discover returns an *endedError, after which the machine reboots. It runs no action and writes to no disk.
func (a *Agent) discover(ctx context.Context) error {
	for {
		found := a.readFacts(ctx)
		report := action.Discovery{Protocol: action.Protocol, MAC: a.cfg.MAC}
		report.Facts = facts.Fit(found, func(f action.Facts) int { report.Facts = f; return facts.JSONSize(report) }, action.MaxHello)

		var answer action.Discovered
		err := a.api.do(ctx, "/agent/v1/discover", report, &answer, 15*time.Second)
		var status *fetch.StatusError
		switch {
		case errors.As(err, &status) && status.Code == http.StatusNotFound:
			return &endedError{"the server does not discover this machine"}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			a.log.Warn("reporting the hardware", "server", a.cfg.Server, "error", err)
		case answer.Known:
			return &endedError{"the machine was accepted as " + answer.Machine}
		default:
			a.log.Info("the hardware was reported; waiting to be accepted", "mac", a.cfg.MAC)
		}

		pause := answer.Again.Duration()
		if pause <= 0 {
			pause = discoverEvery
		}
		if err != nil {
			pause = a.cfg.Backoff
		}
		if err := clock.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// readFacts returns the facts of the machine, without those that cannot be read.
func (a *Agent) readFacts(ctx context.Context) action.Facts {
	if a.cfg.Finder == nil {
		return action.Facts{}
	}
	facts, err := a.cfg.Finder.Facts(ctx)
	if err != nil {
		a.log.Warn("reading the machine's facts", "error", err)
	}
	return facts
}
