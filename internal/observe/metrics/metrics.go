// Package metrics shows the state of a server to Prometheus. It reads when it is asked: from the inventory, through
// the connections that only read, and from counters that the parts of the server keep anyway.
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

// Metrics are the metrics of a server. Make them with New.
type Metrics struct {
	registry *prometheus.Registry
	log      *slog.Logger
	// Operations on BMCs are counted as they end: nothing else counts them.
	bmcOperations *prometheus.CounterVec
	bmcDurations  *prometheus.HistogramVec
}

// New returns metrics of the process and of operations on BMCs; Read adds all others.
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

// ObserveBMC counts an operation on a BMC.
func (m *Metrics) ObserveBMC(o bmc.Operation) {
	m.bmcOperations.WithLabelValues(o.Driver, o.Name, o.Outcome).Inc()
	m.bmcDurations.WithLabelValues(o.Driver).Observe(o.Took.Seconds())
}

// Read adds what is read at each scrape. It is called once, before Handler is used.
func (m *Metrics) Read(c Config) { m.registry.MustRegister(newCollector(c, m.log)) }

// Limits of scrapes.
const (
	maxScrapes  = 2 // at a time
	scrapeLimit = 10 * time.Second
)

// Handler answers scrapes. What cannot be read is left out and counted in ingot_scrape_collector_success.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes, Timeout: scrapeLimit,
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
	})
}
