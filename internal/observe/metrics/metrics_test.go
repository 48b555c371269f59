package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/observe/metrics"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newStore(t testing.TB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), nil, sqlite.WithClock(func() time.Time { return now }))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// everything is a configuration with a value for each metric.
func everything(s *sqlite.Store) metrics.Config {
	return metrics.Config{
		Version: "v1", Store: fakesite.InventoryOf(s),
		Repairs:  func() apitypes.Repairs { return apitypes.Repairs{GrantsEnded: 2, Stuck: 1} },
		Agents:   func() engine.AgentCounts { return engine.AgentCounts{Working: 3, Silent: 1} },
		Retrying: func() int { return 4 },
		Panics:   func() int64 { return 0 },
		Temporal: func() metrics.Temporal { return metrics.Temporal{Up: true, Embedded: true, Restarts: 1} },
		Boot: func() bootsvc.Stats {
			return bootsvc.Stats{DHCPReceived: 9, HTTP: httpserve.RequestCounts{Classes: [5]int64{0, 7}, Bytes: 70}}
		},
		OtherDHCP:    func() int { return 1 },
		Requests:     map[string]func() httpserve.RequestCounts{"operator": (&httpserve.Requests{}).Counts},
		Databases:    map[string]string{"inventory": s.Path(), "temporal": "/nonexistent"},
		Intact:       func() (bool, bool) { return true, true },
		Disks:        func() ([]metrics.Disk, error) { return []metrics.Disk{{"data", 5 << 30, 1 << 30}}, nil },
		LastBackup:   func() time.Time { return now.Add(-time.Hour) },
		ReserveHeld:  func() bool { return true },
		Synchronized: func() (bool, error) { return true, nil },
		Certificates: func() map[string]time.Time { return map[string]time.Time{"operator": now.Add(time.Hour)} },
		Traces:       func() tracing.Counts { return tracing.Counts{Exported: 8, Full: 2} },
	}
}

func scrape(t testing.TB, m *metrics.Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, rec.Code, rec.Body)
	return rec.Body.String()
}

// putSite stores a run that has ended, one that asks, windows and an operation.
func putSite(t testing.TB, s *sqlite.Store) {
	t.Helper()
	ctx := t.Context()
	var machines []inventory.Machine
	for n, name := range []string{"done", "asks", "armed"} {
		machines = append(machines, inventory.Machine{
			Name: name, Interfaces: []inventory.Interface{{MAC: fmt.Sprintf("52:54:00:00:00:%02x", n+1)}},
			Labels: map[string]string{inventory.LabelClass: "r640"},
		})
	}
	require.NoError(t, s.Machines.PutMachines(ctx, machines, false, "test"))
	w := inventory.Workflow{
		Run: "r1", ID: "machine/done", Machine: "done", Type: inventory.TypeProvision, State: inventory.StateRunning,
		Phase: inventory.PhasePlan, Started: now, Updated: now, Seq: 1,
	}
	require.NoError(t, s.Workflows.PutWorkflow(ctx, w))
	w.State, w.Phase, w.Updated, w.Seq = inventory.StateSuccess, inventory.PhaseDone, now.Add(100*time.Second), 2
	require.NoError(t, s.Workflows.PutWorkflow(ctx, w))
	require.NoError(t, s.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "r2", ID: "machine/asks", Machine: "asks", Type: inventory.TypeProvision, State: inventory.StateRunning,
		Phase: inventory.PhaseWaiting, Started: now, Updated: now,
		Question: &inventory.Question{ID: "1.power.1.1", Since: now.Add(-time.Hour)}, Next: "ingot workflow decide asks",
	}))
	_, err := s.Grants.ArmByHand(ctx, "armed", "admin", now.Add(time.Hour))
	require.NoError(t, err)
	require.NoError(t, s.Operations.PutOperation(ctx, inventory.Operation{
		Run: "o1", ID: "recover/a", Type: inventory.TypeRecover, Name: "a", State: inventory.StateRunning,
	}))
}

// TestTable: a scrape shows each metric of the table, and no other of Ingot; names are as Prometheus wants them.
func TestTable(t *testing.T) {
	s := newStore(t)
	m := metrics.New(slog.New(slog.NewTextHandler(t.Output(), nil)))
	m.Read(everything(s))
	m.ObserveBMC(bmc.Operation{Driver: "ipmi", Name: "power on", Outcome: bmc.OutcomeOK, Took: time.Second})
	putSite(t, s)
	text := scrape(t, m)

	shown := map[string]string{}
	for _, x := range regexp.MustCompile(`(?m)^# TYPE (ingot_\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
		shown[x[1]] = x[2]
	}
	for _, row := range metrics.Table() {
		require.True(t, slices.Contains([]string{metrics.Gauge, metrics.Counter, metrics.Histogram}, row.Kind), row.Name)
		if row.Name == "ingot_notice_oldest_timestamp_seconds" {
			continue // shown while a notice waits
		}
		require.Equal(t, row.Kind, shown[row.Name], row.Name)
		delete(shown, row.Name)
	}
	require.Empty(t, shown, "metrics that the table lacks")
	require.Contains(t, text, "\nprocess_start_time_seconds ")
	require.Contains(t, text, "\ngo_goroutines ")

	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestValues(t *testing.T) {
	s := newStore(t)
	m := metrics.New(slog.New(slog.DiscardHandler))
	m.Read(everything(s))
	putSite(t, s)
	text := scrape(t, m)
	for _, line := range []string{
		`ingot_build_info{version="v1"} 1`,
		`ingot_machines{standing="in-service"} 3`,
		`ingot_runs_open{phase="waiting-for-operator",type="Provision"} 1`,
		`ingot_operations_open{type="Recover"} 1`,
		`ingot_question_asked_timestamp_seconds{about="power",machine="asks",operation="",type="Provision"} 1.7723628e+09`,
		`ingot_windows_open{holder="operator",window="netboot"} 1`,
		`ingot_windows_open{holder="none",window="netboot"} 0`,
		`ingot_window_without_run_expiry_timestamp_seconds{holder="operator",machine="armed",window="netboot"} 1.77237e+09`,
		`ingot_runs_ended_total{result="done",type="Provision"} 1`,
		`ingot_run_duration_seconds_sum{class="r640",result="done",type="Provision"} 100`,
		`ingot_run_phase_duration_seconds_sum{class="r640",phase="plan"} 100`,
		`ingot_agents{state="working"} 3`,
		`ingot_dhcp_packets_received_total 9`,
		`ingot_http_requests_total{code="2xx",listener="boot"} 7`,
		`ingot_http_response_bytes_total{listener="boot"} 70`,
		`ingot_repairs_total{what="grant"} 2`,
		`ingot_temporal_restarts_total 1`,
		`ingot_disk_free_bytes{disk="data"} 5.36870912e+09`,
		`ingot_clock_synchronized 1`,
		`ingot_scrape_collector_success{collector="runs"} 1`,
	} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	require.NotContains(t, text, `database="temporal"`, "the file does not exist yet")
	require.Contains(t, scrape(t, m), `ingot_runs_ended_total{result="done",type="Provision"} 1`, "an end is counted once")
}

// TestFailures: what cannot be read is left out, and the rest is shown.
func TestFailures(t *testing.T) {
	s := newStore(t)
	m := metrics.New(slog.New(slog.DiscardHandler))
	c := everything(s)
	c.Disks = func() ([]metrics.Disk, error) { return nil, errors.New("no disk") }
	c.Store = failing{c.Store}
	m.Read(c)
	text := scrape(t, m)
	require.Contains(t, text, `ingot_scrape_collector_success{collector="disks"} 0`)
	require.Contains(t, text, `ingot_scrape_collector_success{collector="runs"} 0`)
	require.Contains(t, text, `ingot_scrape_collector_success{collector="windows"} 1`)
	require.NotContains(t, text, "ingot_disk_free_bytes")
	require.NotContains(t, text, "ingot_runs_open")
}

type failing struct{ metrics.Store }

func (failing) OpenWork(context.Context) ([]inventory.OpenWork, error) {
	return nil, io.ErrUnexpectedEOF
}

// TestS60ClassesAreBounded: labels of machines make a bounded number of series.
func TestS60ClassesAreBounded(t *testing.T) {
	m := metrics.New(slog.New(slog.DiscardHandler))
	c := everything(newStore(t))
	c.Store = manyClasses{c.Store}
	m.Read(c)
	text := scrape(t, m)
	require.Equal(t, 31, strings.Count(text, "ingot_run_phase_duration_seconds_sum{"))
	require.Contains(t, text, `ingot_run_phase_duration_seconds_count{class="other",phase="plan"} 970`)
}

type manyClasses struct{ metrics.Store }

func (manyClasses) PhaseEnds(context.Context, int64) (ends []inventory.PhaseEnd, last int64, err error) {
	for n := range 1000 {
		ends = append(ends, inventory.PhaseEnd{
			Class:       fmt.Sprint("class-", n),
			PhaseChange: inventory.PhaseChange{Phase: inventory.PhaseArm, Before: inventory.PhasePlan, Seconds: 1},
		})
	}
	return ends, 1000, nil
}

// BenchmarkScrape: 1,000 machines that are being installed, all with open windows.
func BenchmarkScrape(b *testing.B) {
	const machines = 1000
	s, ctx := newStore(b), b.Context()
	for n := range machines {
		name := fmt.Sprintf("node-%04d", n)
		m := inventory.Machine{
			Name: name, Interfaces: []inventory.Interface{{MAC: fmt.Sprintf("52:54:00:00:%02x:%02x", n/256, n%256)}},
			Labels: map[string]string{inventory.LabelClass: "r640"},
		}
		require.NoError(b, s.Machines.PutMachines(ctx, []inventory.Machine{m}, false, "test"))
		w := inventory.Workflow{
			Run: "run-" + name, ID: "machine/" + name, Machine: name, Type: inventory.TypeProvision, State: inventory.StateRunning,
			Phase: inventory.PhaseAction, Started: now, Updated: now, Message: strings.Repeat("x", 100), Input: []byte(`{"machine":"` + name + `"}`),
		}
		for a := range 6 {
			w.Actions = append(
				w.Actions,
				inventory.ActionRecord{Name: fmt.Sprint("action ", a), Image: "image2disk", Message: strings.Repeat("y", 60)},
			)
		}
		require.NoError(b, s.Workflows.PutWorkflow(ctx, w))
		g, err := s.Grants.TakeGrant(ctx, name, w.Run, w.ID, false)
		require.NoError(b, err)
		_, err = s.Grants.AllowBoot(ctx, g.Owner, 1, now.Add(time.Hour))
		require.NoError(b, err)
	}

	m := metrics.New(slog.New(slog.DiscardHandler))
	m.Read(everything(s))
	for b.Loop() {
		require.Contains(b, scrape(b, m), `ingot_runs_open{phase="action",type="Provision"} 1000`)
	}
}
