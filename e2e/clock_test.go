package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
)

// TestClockJump sets the server's clock a day forward while machines are in each kind of
// wait. All of Temporal's timers fire at once; no machine is switched off for that, and
// every installation succeeds. A machine continues only after its run's deadline has passed
// and the run has asked for evidence. The server runs in a guest, because namespaces share
// the host's wall clock.
func TestClockJump(t *testing.T) {
	if !*full {
		t.Skip("the long form: make e2e FULL=1")
	}
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Guest: true})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	s.template(ctx, t, "slow", `version: "0.1"
name: slow
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: wait, image: noop, timeout: 300, environment: {SLEEP: "60"}}
  - {name: write, image: image2disk, timeout: 300, environment: {IMG_URL: "{{.image.url}}", DEST_DISK: /dev/vda}}
  - {name: seed, image: configdrive, timeout: 60}
`)
	stages := []lab.Stage{lab.StageDHCP, lab.StageScript, lab.StageInitrd, lab.StageAgent, lab.StageDisk, lab.StagePhoneHome}
	machines := map[string]*lab.Machine{}
	gates := map[string]*lab.Gate{}
	add := func(name, template string, stage lab.Stage) {
		gates[name] = lab.NewGate(stage)
		m, err := s.Add(
			ctx,
			lab.Spec{Name: name, Firmware: lab.Simulated, Agent: "../bin/worker-agent", Stage: gates[name].Stage},
			func(doc map[string]any) {
				doc["image"], doc["template"] = "sim", template
			},
		)
		require.NoError(t, err)
		machines[name] = m
		s.must(ctx, t, "machine", "provision", name)
	}
	for _, stage := range stages {
		add("at-"+string(stage), "image", stage)
	}
	add("acting", "slow", "none")
	delete(gates, "acting")
	for _, g := range gates {
		require.NoError(t, g.Reached(ctx))
	}
	_, err = s.Follow(ctx, "acting", func(w inventory.Workflow) bool {
		return w.Phase == inventory.PhaseAction && w.Actions[0].State == "RUNNING"
	})
	require.NoError(t, err)

	c, err := client.NewLazyClient(client.Options{HostPort: s.Temporal, Logger: silent()})
	require.NoError(t, err)
	defer c.Close()
	before := map[string]int64{}
	for name := range machines {
		h := historyOf(ctx, t, c, workflows.MachineID(name), "").Events
		before[name] = h[len(h)-1].EventId
	}
	require.NoError(t, s.guest.SetClock(ctx, time.Now().Add(24*time.Hour)))
	jumped := time.Now()
	until(ctx, t, "the server to notice", func() bool {
		b, err := os.ReadFile(s.log.Name())
		require.NoError(t, err)
		return strings.Contains(string(b), "the clock was set")
	})
	for name := range machines {
		eventually(ctx, t, "the deadline of "+name+" passes", func() bool {
			return consulted(historyOf(ctx, t, c, workflows.MachineID(name), "").Events, before[name])
		})
		t.Logf("%s: its deadline has passed, and the run was told what is known, %.1f s after the jump", name, time.Since(jumped).Seconds())
		if g := gates[name]; g != nil {
			g.Open()
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for name := range machines {
		g.Go(func() error {
			w, err := s.Follow(gctx, name, func(w inventory.Workflow) bool { return inventory.Final(w.State) })
			if err == nil && w.State != inventory.StateSuccess {
				err = fmt.Errorf("%s ended as %s: %s", name, w.State, w.Message)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	for name, m := range machines {
		require.Equal(t, 1, m.PowerOns(), "%s was switched on more than once", name)
		require.Equal(t, 1, m.Writers(), "%s had several writers", name)
		require.Equal(t, 1, m.Resets(), "%s was reset by more than its own reboot", name)
	}
}

// consulted reports whether a timer has fired after event number after and the run has then
// asked for evidence and got it. That is the first thing a run does after a deadline.
func consulted(events []*historypb.HistoryEvent, after int64) bool {
	fired := false
	questions := map[int64]bool{}
	for _, e := range events {
		switch {
		case e.EventId <= after:
		case e.GetTimerFiredEventAttributes() != nil:
			fired = true
		case fired && e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName() == "Evidence":
			questions[e.EventId] = true
		case questions[e.GetActivityTaskCompletedEventAttributes().GetScheduledEventId()]:
			return true
		}
	}
	return false
}
