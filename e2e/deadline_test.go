package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestTemporalDownAcrossDeadlines stops Temporal before a report and starts it after the
// report's deadline: the timer is then older than the signal. A machine that reported in
// time is not switched. Tests with deadlines of minutes are in workflows, with a simulated
// clock.
func TestTemporalDownAcrossDeadlines(t *testing.T) {
	runInTurn(t, 55, 2)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	const timeout = 10 * time.Second
	s.template(ctx, t, "short", `version: "0.1"
name: short
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 300, environment: {IMG_URL: "{{.image.url}}", DEST_DISK: /dev/vda}}
  - {name: seed, image: configdrive, timeout: 60}
  - {name: wait, image: noop, timeout: 10, environment: {SLEEP: "5"}}
  - {name: leave, image: reboot, timeout: 10}
`)
	gate := lab.NewGate(lab.StagePhoneHome)
	var machines []*lab.Machine
	for name, stage := range map[string]func(*lab.Spec){"acting": func(*lab.Spec) {}, "leaving": func(s *lab.Spec) { s.Stage = gate.Stage }} {
		spec := lab.Spec{Name: name, Firmware: lab.Simulated, Agent: "../bin/worker-agent"}
		stage(&spec)
		m, err := s.Add(ctx, spec, func(doc map[string]any) { doc["image"], doc["template"] = "sim", "short" })
		require.NoError(t, err)
		machines = append(machines, m)
	}
	leaving, err := s.Provision(ctx, contract.ProvisionInput{Machine: "leaving"})
	require.NoError(t, err)
	require.NoError(t, gate.Reached(ctx))
	acting, err := s.Provision(ctx, contract.ProvisionInput{Machine: "acting"})
	require.NoError(t, err)
	_, err = s.Follow(ctx, "acting", func(w inventory.Workflow) bool { return len(w.Actions) > 2 && w.Actions[2].State == action.Running })
	require.NoError(t, err)

	history := func() []*historypb.HistoryEvent {
		c, err := client.NewLazyClient(client.Options{HostPort: s.Temporal, Logger: silent()})
		require.NoError(t, err)
		defer c.Close()
		return historyOf(ctx, t, c, workflows.MachineID("acting"), acting).Events
	}
	// A workflow task that is interrupted is repeated when Temporal is back, and sets its timer only then.
	until(ctx, t, "the timer of the action runs", func() bool { return idleWithTimer(history(), timeout+30*time.Second) })

	// The process with the lock keeps every new child from its database.
	lock, err := os.OpenFile(filepath.Join(s.dir, "state/ingot/temporal/temporal.db.lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer lock.Close()
	_, err = s.KillRole(lab.RoleTemporal)
	require.NoError(t, err)
	until(ctx, t, "the lock is ours", func() bool { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil })
	gone := time.Now()
	gate.Open()
	// Both machines have reported before their deadlines: one by its report, the other by its call.
	until(ctx, t, "the reports are in the inventory", func() bool {
		return len(s.eventsOfKind(ctx, t, acting, inventory.EventActionDone)) == 3 &&
			len(s.eventsOfKind(ctx, t, leaving, inventory.EventPhoneHome)) == 1
	})
	require.Less(t, time.Since(gone), timeout+30*time.Second, "the reports were late: nothing would be shown")
	// The deadline passes: the action's time-out and the extra half minute.
	passed := time.NewTimer(time.Until(gone.Add(timeout + 35*time.Second)))
	defer passed.Stop()
	select {
	case <-passed.C:
	case <-ctx.Done():
		require.NoError(t, ctx.Err())
	}
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_UN))
	back := time.Now()

	for _, m := range machines {
		s.ended(ctx, t, m.Name(), inventory.StateSuccess)
		require.Equal(t, 1, m.PowerOns(), "%s was switched", m.Name())
		require.Equal(t, 1, m.Resets(), "%s was reset by more than its own reboot", m.Name())
		require.Equal(t, 1, m.Writers())
		s.closed(ctx, t, m.Name())
	}
	// The timer of the run fires before the run receives the report. (The other run has a deadline
	// of twenty minutes.)
	events := history()
	first := slices.IndexFunc(events, func(e *historypb.HistoryEvent) bool { return e.EventTime.AsTime().After(back) })
	require.Positive(t, first)
	require.NotNil(t, events[first].GetTimerFiredEventAttributes(), "the first event after Temporal's return is %s", events[first].EventType)
	require.True(t, consulted(events, events[first-1].EventId), "the run asked what is known")
}

// idleWithTimer reports whether a run has no workflow task under way and has set a timer of about d.
func idleWithTimer(events []*historypb.HistoryEvent, d time.Duration) bool {
	var idle, set bool
	for _, e := range events {
		switch e.EventType {
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
			idle = false
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
			idle = true
		case enumspb.EVENT_TYPE_TIMER_STARTED:
			set = set || e.GetTimerStartedEventAttributes().StartToFireTimeout.AsDuration().Round(2*time.Second) == d
		}
	}
	return idle && set
}
