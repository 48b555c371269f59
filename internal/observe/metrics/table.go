package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Kinds of metrics.
const (
	Gauge     = "gauge"
	Counter   = "counter" // counted since the server started
	Histogram = "histogram"
)

// A Metric describes a metric of Ingot. docs/monitoring.md lists them.
type Metric struct {
	Name   string
	Kind   string
	Labels string // names, separated by spaces
	Help   string
}

// Table returns the metrics of Ingot, by subject. The server also exports the metrics of its process (process_*) and of
// the Go runtime (go_*).
//
// No label holds text that a machine supplies. A machine's name is a label only of open questions, and of netboot and
// secrets windows (docs/glossary.md) that no run owns. There are few of both, and an operator must look at them: an
// alert without the machine's name would be of little use.
func Table() []Metric { return slices.Concat(runMetrics(), networkMetrics(), serverMetrics()) }

func runMetrics() []Metric {
	return []Metric{
		{"ingot_build_info", Gauge, "version", "Always 1; the label is the version of this server."},
		{"ingot_scrape_collector_success", Gauge, "collector", "1 if this part of the metrics could be read."},
		{"ingot_scrape_collector_duration_seconds", Gauge, "collector", "How long reading this part of the metrics took."},
		{"ingot_panics_total", Counter, "", "Packets and requests whose handling panicked. Each is a bug in Ingot."},

		{"ingot_machines", Gauge, "standing", "Machines in the inventory: in-service, available or quarantined."},
		{"ingot_images", Gauge, "", "Images in the inventory."},
		{"ingot_images_size_bytes", Gauge, "", "Size of all images in the inventory."},
		{"ingot_runs_open", Gauge, "type phase", "Open runs, by type of workflow and phase."},
		{"ingot_operations_open", Gauge, "type", "Open operations."},
		{
			"ingot_question_asked_timestamp_seconds", Gauge, "type machine operation about",
			"When the wait for an operator began. about is the subject of the question: power, off, manual-off, stop, arm, boot, " +
				"claim, bind, action, install, ready, fenced or held; step (of an operation); or button (to press, without a question).",
		},
		{"ingot_windows_open", Gauge, "window holder", "Open netboot and secrets windows, by holder: run, operator or none."},
		{
			"ingot_window_without_run_expiry_timestamp_seconds", Gauge, "machine window holder",
			"Expiry of each open window that no open run owns.",
		},
		{"ingot_runs_ended_total", Counter, "type result", "Ended runs: done (SUCCESS), failed (FAILED or TIMEOUT) or cancelled."},
		{"ingot_run_duration_seconds", Histogram, "type class result", "Duration of whole runs, by the machine's label class."},
		{"ingot_run_phase_duration_seconds", Histogram, "phase class", "Duration of phases, by the machine's label class."},
		{"ingot_runs_stuck", Gauge, "", "Runs whose workflow code fails again and again."},
		{"ingot_activities_retrying", Gauge, "", "Activities of open runs that fail and are repeated."},

		{"ingot_bmc_operations_total", Counter, "driver operation outcome", "Operations on BMCs."},
		{
			"ingot_bmc_operation_duration_seconds", Histogram, "driver",
			"Duration of operations on BMCs, with the wait for another operation.",
		},

		{"ingot_agents", Gauge, "state", "Agents that have reported in the last hour: working, idle, or silent for a minute."},
		{"ingot_agents_lost_total", Counter, "", "Agents that fell silent while they had work."},
	}
}

func networkMetrics() []Metric {
	return []Metric{
		{"ingot_dhcp_packets_received_total", Counter, "", "DHCP packets received."},
		{"ingot_dhcp_packets_answered_total", Counter, "", "DHCP packets answered."},
		{
			"ingot_dhcp_packets_dropped_total", Counter, "reason",
			"DHCP packets dropped: queue-full (more came at once than the kernel keeps: net.core.rmem_max), malformed, or not-relayed.",
		},
		{
			"ingot_boot_answers_dropped_total", Counter, "protocol reason",
			"Answers by dhcp and tftp that were not sent: unresolved (too many wait for addresses that do not answer ARP), " +
				"unproven (too many at once to TFTP clients that have not answered) or unsent (the kernel took no more: net.core.wmem_max). " +
				"High numbers indicate forged requests.",
		},
		{"ingot_dhcp_packets_unknown_total", Counter, "", "DHCP packets of machines that are not in the inventory."},
		{"ingot_dhcp_other_servers", Gauge, "", "Other DHCP servers that were seen in the last hour."},
		{
			"ingot_tftp_transfers_total", Counter, "outcome",
			"TFTP requests: served, refused or aborted. Firmware that asks only for the size aborts.",
		},
		{
			"ingot_http_requests_total", Counter, "listener code",
			"HTTP requests by listener (boot, metadata, agent, operator) and class of the status.",
		},
		{"ingot_http_response_bytes_total", Counter, "listener", "Size of HTTP answers, images among them."},
		{"ingot_boot_events_dropped_total", Counter, "", "Boot events that were not recorded, because too many waited."},
		{"ingot_unknown_machines_dropped_total", Counter, "", "Unknown machines that were not recorded, because too many were new."},
		{"ingot_syslog_lines_dropped_total", Counter, "reason", "Lines of syslog that were not kept: too-many or unknown-host."},
	}
}

func serverMetrics() []Metric {
	return []Metric{
		{"ingot_database_size_bytes", Gauge, "database file", "Size of the databases inventory and temporal: main or wal."},
		{"ingot_database_waits_total", Counter, "pool", "Times that a statement waited for a connection: read or write."},
		{"ingot_database_wait_seconds_total", Counter, "pool", "Time that statements waited for a connection."},
		{"ingot_inventory_intact", Gauge, "", "0 if the check of the inventory at the start found damage."},

		{"ingot_temporal_up", Gauge, "", "1 while this server can work with Temporal."},
		{"ingot_temporal_restarts_total", Counter, "", "How often the embedded Temporal server ended and was started again."},
		{"ingot_signals_refused_total", Counter, "", "Events that Temporal has refused permanently."},
		{"ingot_repairs_total", Counter, "what", "Repairs of the reconcile loop: grant, record, window or fenced-run."},

		{"ingot_disk_free_bytes", Gauge, "disk", "Free space on the disk of data and, if different, on the disk of images."},
		{"ingot_disk_min_free_bytes", Gauge, "disk", "Free space below which new runs and uploads are refused."},
		{"ingot_disk_reserve_held", Gauge, "", "0 while the reserve of disk space is in use, because the disk is full."},
		{
			"ingot_backup_verified_timestamp_seconds", Gauge, "",
			"When the newest backup in backup.dir was made, which was read back and verified; 0 if there is none.",
		},
		{"ingot_clock_synchronized", Gauge, "", "1 if the kernel's clock is synchronized."},
		{"ingot_clock_steps_total", Counter, "", "Times that the clock was set while the server ran."},
		{
			"ingot_certificate_expiry_timestamp_seconds", Gauge, "listener",
			"When the certificate of a listener (operator or agent), or the one for the Temporal cluster (temporal), expires.",
		},
		{"ingot_notices_waiting", Gauge, "", "Notices that the webhook has not accepted yet."},
		{"ingot_notice_oldest_timestamp_seconds", Gauge, "", "Time of the oldest waiting notice."},
		{"ingot_trace_spans_exported_total", Counter, "", "Spans that the collector has accepted."},
		{
			"ingot_trace_spans_dropped_total", Counter, "reason",
			"Spans that were dropped: queue-full (too many waited for the collector) or refused (by the collector).",
		},
	}
}

// rows holds the Prometheus descriptions of the metrics, by name.
type rows map[string]row

type row struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newRows() rows {
	out := rows{}
	for _, m := range Table() {
		kind := prometheus.GaugeValue
		if m.Kind == Counter {
			kind = prometheus.CounterValue
		}
		out[m.Name] = row{prometheus.NewDesc(m.Name, m.Help, strings.Fields(m.Labels), nil), kind}
	}
	return out
}

// histogram returns a new histogram for the metric of this name in Table.
func histogram(name string, buckets []float64) *prometheus.HistogramVec {
	m := find(name)
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: m.Help, Buckets: buckets}, strings.Fields(m.Labels))
}

// counter returns a new counter for the metric of this name in Table.
func counter(name string) *prometheus.CounterVec {
	m := find(name)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: m.Help}, strings.Fields(m.Labels))
}

// find returns the metric of this name, which Table must contain.
func find(name string) Metric {
	all := Table()
	return all[slices.IndexFunc(all, func(m Metric) bool { return m.Name == name })]
}
