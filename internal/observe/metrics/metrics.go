// Package metrics exports the state of a server to Prometheus. It reads the values at each scrape: from the
// inventory, through its read-only connections, and from counters that other parts of the server keep.
package metrics

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ingotmetal/ingot/bmc"
)

// Metrics holds the metrics of a server. New returns one.
type Metrics struct {
	registry *prometheus.Registry
	log      *slog.Logger
	// Operations on BMCs are counted here when they end, because nothing else counts them.
	bmcOperations *prometheus.CounterVec
	bmcDurations  *prometheus.HistogramVec
}

// New returns the metrics of the process and of BMC operations. Read adds all others.
func New(log *slog.Logger) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), log: log, bmcOperations: counter("ingot_bmc_operations_total"),
		bmcDurations: histogram("ingot_bmc_operation_duration_seconds", []float64{0.1, 0.3, 1, 3, 10, 30, 60, 120, 300}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.bmcOperations, m.bmcDurations,
	)
	return m
}

// ObserveBMC counts a BMC operation that has ended.
func (m *Metrics) ObserveBMC(o bmc.Operation) {
	m.bmcOperations.WithLabelValues(o.Driver, o.Name, o.Outcome).Inc()
	m.bmcDurations.WithLabelValues(o.Driver).Observe(o.Took.Seconds())
}

// Read adds the metrics that are read at each scrape. Call it once, before Handler is used.
func (m *Metrics) Read(c Config) {
	m.registry.MustRegister(&collector{Config: c, rows: newRows(), log: m.log, phases: newPhases(c.LastEvent)})
}

// Limits of scrapes.
const (
	maxScrapes  = 2 // at a time
	scrapeLimit = 10 * time.Second
)

// Handler returns the handler of scrapes. If a part of the metrics cannot be read, it is left out and its
// ingot_scrape_collector_success is 0.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes, Timeout: scrapeLimit,
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
	})
}
