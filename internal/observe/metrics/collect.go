package metrics

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

// readLimit limits how long one scrape may read from the inventory.
const readLimit = 5 * time.Second

// collector reads the metrics of a Config at each scrape.
type collector struct {
	Config
	rows   rows
	log    *slog.Logger
	phases *phases

	mu sync.Mutex // held during a scrape, so that no phase is counted twice
}

// A part reads some of the metrics. If it fails, the other parts are still exported.
type part struct {
	name string
	read func(ctx context.Context, o scrape) error
}

func (c *collector) parts() []part {
	return []part{
		{"process", c.readProcess},
		{"machines", c.readMachines},
		{"runs", c.readRuns},
		{"windows", c.readWindows},
		{"phases", c.readPhases},
		{"network", c.readNetwork},
		{"databases", c.readDatabases},
		{"notices", c.readNotices},
		{"disks", c.readDisks},
		{"clock", c.readClock},
		{"traces", c.readTraces},
	}
}

// scrape receives the values of one scrape.
type scrape struct {
	ch   chan<- prometheus.Metric
	rows rows
}

func (o scrape) put(name string, value float64, labels ...string) {
	r := o.rows[name]
	o.ch <- prometheus.MustNewConstMetric(r.desc, r.kind, value, labels...)
}

func (o scrape) putBool(name string, yes bool) {
	value := 0.0
	if yes {
		value = 1
	}
	o.put(name, value)
}

func (o scrape) putTime(name string, at time.Time, labels ...string) {
	o.put(name, float64(at.UnixMilli())/1000, labels...)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range Table() {
		if m.Kind != Histogram && m.Name != "ingot_bmc_operations_total" && m.Name != "ingot_runs_ended_total" {
			ch <- c.rows[m.Name].desc
		}
	}
	c.phases.describe(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	o := scrape{ch, c.rows}
	for _, p := range c.parts() {
		began := time.Now()
		err := p.read(ctx, o)
		success := 1.0
		if err != nil {
			success = 0
			c.log.Warn("reading metrics", "collector", p.name, "error", err)
		}
		o.put("ingot_scrape_collector_success", success, p.name)
		o.put("ingot_scrape_collector_duration_seconds", time.Since(began).Seconds(), p.name)
	}
}

// readProcess exports the values that this process holds in memory.
func (c *collector) readProcess(_ context.Context, o scrape) error {
	o.put("ingot_build_info", 1, c.Version)
	o.put("ingot_panics_total", float64(c.Panics()))
	o.put("ingot_activities_retrying", float64(c.Retrying()))

	a := c.Agents()
	o.put("ingot_agents", float64(a.Working), "working")
	o.put("ingot_agents", float64(a.Idle), "idle")
	o.put("ingot_agents", float64(a.Silent), "silent")

	t := c.Temporal()
	o.putBool("ingot_temporal_up", t.Up)
	if t.Embedded {
		o.put("ingot_temporal_restarts_total", float64(t.Restarts))
	}

	r := c.Repairs()
	o.put("ingot_runs_stuck", float64(r.Stuck))
	o.put("ingot_agents_lost_total", float64(r.AgentsLost))
	o.put("ingot_signals_refused_total", float64(r.SignalsRefused))
	o.put("ingot_clock_steps_total", float64(r.ClockSteps))
	o.put("ingot_repairs_total", float64(r.GrantsEnded), "grant")
	o.put("ingot_repairs_total", float64(r.RecordsRepaired), "record")
	o.put("ingot_repairs_total", float64(r.OperatorWindowsExpired), "window")
	o.put("ingot_repairs_total", float64(r.RunsFenced), "fenced-run")
	return nil
}

func (c *collector) readMachines(ctx context.Context, o scrape) error {
	machines, err := c.Store.MachineCount(ctx)
	if err != nil {
		return err
	}
	standings, err := c.Store.Standings(ctx)
	if err != nil {
		return err
	}
	for _, s := range []string{inventory.StandingAvailable, inventory.StandingQuarantined} {
		o.put("ingot_machines", float64(standings[s]), s)
		machines -= standings[s]
	}
	o.put("ingot_machines", float64(machines), "in-service")

	images, err := c.Store.Images(ctx)
	if err != nil {
		return err
	}
	var size int64
	for _, i := range images {
		size += i.Size
	}
	o.put("ingot_images", float64(len(images)))
	o.put("ingot_images_size_bytes", float64(size))
	return nil
}

func (c *collector) readRuns(ctx context.Context, o scrape) error {
	work, err := c.Store.OpenWork(ctx)
	if err != nil {
		return err
	}
	type key struct{ kind, phase string }
	runs, operations := map[key]int{}, map[string]int{}
	for _, w := range work {
		if w.Name == "" {
			runs[key{w.Type, w.Phase}] += w.Count
		} else {
			operations[w.Type] += w.Count
		}
		if w.About != "" {
			o.putTime("ingot_question_asked_timestamp_seconds", w.Since, w.Type, w.Machine, w.Name, w.About)
		}
	}

	for k, n := range runs {
		o.put("ingot_runs_open", float64(n), k.kind, k.phase)
	}
	for kind, n := range operations {
		o.put("ingot_operations_open", float64(n), kind)
	}
	return nil
}

func (c *collector) readWindows(ctx context.Context, o scrape) error {
	windows, err := c.Store.OpenWindows(ctx)
	if err != nil {
		return err
	}
	type key struct{ window, holder string }
	open := map[key]int{}
	for _, w := range []string{inventory.WindowNetboot, inventory.WindowSecrets} {
		for _, h := range []string{inventory.HeldByRun, inventory.HeldByOperator, inventory.HeldByNone} {
			open[key{w, h}] = 0
		}
	}
	for _, w := range windows {
		open[key{w.Window, w.Holder}] += w.Count
		if w.Holder != inventory.HeldByRun {
			o.putTime("ingot_window_without_run_expiry_timestamp_seconds", w.Until, w.Machine, w.Window, w.Holder)
		}
	}
	for k, n := range open {
		o.put("ingot_windows_open", float64(n), k.window, k.holder)
	}
	return nil
}

func (c *collector) readPhases(ctx context.Context, o scrape) error {
	err := c.phases.read(ctx, c.Store)
	c.phases.collect(o.ch)
	return err
}

func (c *collector) readNetwork(_ context.Context, o scrape) error {
	if c.Boot != nil {
		s := c.Boot()
		o.put("ingot_dhcp_packets_received_total", float64(s.DHCPReceived))
		o.put("ingot_dhcp_packets_answered_total", float64(s.DHCPAnswered))
		o.put("ingot_dhcp_packets_unknown_total", float64(s.DHCPUnknown))
		o.put("ingot_boot_events_dropped_total", float64(s.EventsDropped))
		o.put("ingot_unknown_machines_dropped_total", float64(s.SeenDropped))
		o.put("ingot_dhcp_packets_dropped_total", float64(s.DHCPDropped), "queue-full")
		o.put("ingot_dhcp_packets_dropped_total", float64(s.DHCPMalformed), "malformed")
		o.put("ingot_dhcp_packets_dropped_total", float64(s.DHCPDirect), "not-relayed")
		o.put("ingot_boot_answers_dropped_total", float64(s.DHCPUnresolved), "dhcp", "unresolved")
		o.put("ingot_boot_answers_dropped_total", float64(s.DHCPUnsent), "dhcp", "unsent")
		o.put("ingot_boot_answers_dropped_total", float64(s.TFTPUnresolved), "tftp", "unresolved")
		o.put("ingot_boot_answers_dropped_total", float64(s.TFTPUnproven), "tftp", "unproven")
		o.put("ingot_boot_answers_dropped_total", float64(s.TFTPUnsent), "tftp", "unsent")
		o.put("ingot_tftp_transfers_total", float64(s.TFTPServed), "served")
		o.put("ingot_tftp_transfers_total", float64(s.TFTPRefused), "refused")
		o.put("ingot_tftp_transfers_total", float64(s.TFTPAborted), "aborted")
		o.put("ingot_syslog_lines_dropped_total", float64(s.SyslogDropped), "too-many")
		o.put("ingot_syslog_lines_dropped_total", float64(s.SyslogUnknown), "unknown-host")
		o.put("ingot_dhcp_other_servers", float64(c.OtherDHCP()))
		o.putRequests("boot", s.HTTP)
	}
	for name, counts := range c.Requests {
		o.putRequests(name, counts())
	}
	return nil
}

func (o scrape) putRequests(listener string, c httpserve.RequestCounts) {
	for i, class := range []string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
		o.put("ingot_http_requests_total", float64(c.Classes[i]), listener, class)
	}
	o.put("ingot_http_response_bytes_total", float64(c.Bytes), listener)
}

func (c *collector) readDatabases(_ context.Context, o scrape) error {
	read, write := c.Store.Pools()
	o.put("ingot_database_waits_total", float64(read.WaitCount), "read")
	o.put("ingot_database_wait_seconds_total", read.WaitDuration.Seconds(), "read")
	o.put("ingot_database_waits_total", float64(write.WaitCount), "write")
	o.put("ingot_database_wait_seconds_total", write.WaitDuration.Seconds(), "write")
	if intact, done := c.Intact(); done {
		o.putBool("ingot_inventory_intact", intact)
	}

	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		for file, suffix := range map[string]string{"main": "", "wal": "-wal"} {
			info, err := os.Stat(c.Databases[name] + suffix)
			switch {
			case errors.Is(err, fs.ErrNotExist): // Temporal has not created the file yet
			case err != nil:
				errs = append(errs, err)
			default:
				o.put("ingot_database_size_bytes", float64(info.Size()), name, file)
			}
		}
	}
	return errors.Join(errs...)
}

func (c *collector) readNotices(ctx context.Context, o scrape) error {
	n, err := c.Store.Notices(ctx)
	if err != nil {
		return err
	}
	o.put("ingot_notices_waiting", float64(n.Waiting))
	if !n.Oldest.IsZero() {
		o.putTime("ingot_notice_oldest_timestamp_seconds", n.Oldest)
	}
	return nil
}

func (c *collector) readDisks(_ context.Context, o scrape) error {
	if c.ReserveHeld != nil {
		o.putBool("ingot_disk_reserve_held", c.ReserveHeld())
	}
	if c.LastBackup != nil {
		at := c.LastBackup()
		if at.IsZero() {
			at = time.Unix(0, 0)
		}
		o.putTime("ingot_backup_verified_timestamp_seconds", at)
	}
	disks, err := c.Disks()
	if err != nil {
		return err
	}
	for _, d := range disks {
		o.put("ingot_disk_free_bytes", float64(d.Free), d.Name)
		o.put("ingot_disk_min_free_bytes", float64(d.MinFree), d.Name)
	}
	return nil
}

func (c *collector) readClock(_ context.Context, o scrape) error {
	for listener, until := range c.Certificates() {
		o.putTime("ingot_certificate_expiry_timestamp_seconds", until, listener)
	}
	yes, err := c.Synchronized()
	if err == nil {
		o.putBool("ingot_clock_synchronized", yes)
	}
	return err
}

func (c *collector) readTraces(_ context.Context, o scrape) error {
	if c.Traces == nil {
		return nil
	}
	n := c.Traces()
	o.put("ingot_trace_spans_exported_total", float64(n.Exported))
	o.put("ingot_trace_spans_dropped_total", float64(n.Full), "queue-full")
	o.put("ingot_trace_spans_dropped_total", float64(n.Refused), "refused")
	return nil
}
