package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ingotmetal/ingot/inventory"
)

// maxClasses limits how many classes of hardware are values of the label class. Further classes are counted as
// otherClass.
const (
	maxClasses = 30
	otherClass = "other"
)

// phases counts and times the phases and runs that have ended, from the events in the inventory. It reads each
// event once.
type phases struct {
	after   int64 // number of the last event that was read
	classes map[string]bool

	phase, run *prometheus.HistogramVec
	ended      *prometheus.CounterVec
}

func newPhases(after int64) *phases {
	p := &phases{
		after: after, classes: map[string]bool{},
		phase: histogram("ingot_run_phase_duration_seconds", []float64{0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 4 * 3600}),
		run:   histogram("ingot_run_duration_seconds", []float64{10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 4 * 3600, 24 * 3600}),
		ended: counter("ingot_runs_ended_total"),
	}
	// Create the counters of failed runs with the value 0: Prometheus sees no increase in a counter that begins at 1, and the
	// alert about a failed run needs the increase.
	for _, kind := range []string{inventory.TypeProvision, inventory.TypeReprovision, inventory.TypeDecommission} {
		p.ended.WithLabelValues(kind, inventory.PhaseFailed)
	}
	return p
}

func (p *phases) describe(ch chan<- *prometheus.Desc) {
	p.phase.Describe(ch)
	p.run.Describe(ch)
	p.ended.Describe(ch)
}

func (p *phases) collect(ch chan<- prometheus.Metric) {
	p.phase.Collect(ch)
	p.run.Collect(ch)
	p.ended.Collect(ch)
}

// read counts the phases and runs that have ended since the last call.
func (p *phases) read(ctx context.Context, s Store) error {
	ends, last, err := s.PhaseEnds(ctx, p.after)
	if err != nil {
		return err
	}
	p.after = last
	for _, e := range ends {
		class := p.class(e.Class)
		if e.Before != "" {
			p.phase.WithLabelValues(e.Before, class).Observe(e.Seconds)
		}
		if e.Ended() {
			p.ended.WithLabelValues(e.Type, e.Phase).Inc()
			if !e.Started.IsZero() {
				p.run.WithLabelValues(e.Type, class, e.Phase).Observe(max(e.Began.Sub(e.Started).Seconds(), 0))
			}
		}
	}
	return nil
}

// class returns the value of the label class for a class of hardware.
func (p *phases) class(name string) string {
	if !p.classes[name] {
		if len(p.classes) == maxClasses {
			return otherClass
		}
		p.classes[name] = true
	}
	return name
}
