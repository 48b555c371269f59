package bmc

import (
	"context"
	"errors"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Report is what Check found.
type Report struct {
	Power string        `json:"power"`
	Boot  string        `json:"boot"` // the boot device that was read
	Took  time.Duration `json:"took"` // nanoseconds in JSON

	// The rest is read by Redfish only.
	Maker      string    `json:"maker,omitempty"`
	Model      string    `json:"model,omitempty"`
	Firmware   string    `json:"firmware,omitempty"`   // version of the machine's firmware
	Controller string    `json:"controller,omitempty"` // version of the BMC's firmware
	SecureBoot string    `json:"secureBoot,omitempty"` // enabled or disabled at the last start
	Sensors    []Reading `json:"sensors,omitempty"`
}

// Reading is the value of a sensor.
type Reading struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`             // Cel, RPM, Percent
	Health string  `json:"health,omitempty"` // ok, warning or critical
}

// inspector is a provider that can read more of a Report.
type inspector interface {
	inspect(ctx context.Context, r *Report) error
}

// Check logs in and reads the power state and the boot device. On AMT it also checks
// that a boot device would have an effect. It writes nothing.
func (d *Driver) Check(ctx context.Context, b inventory.BMC, password inventory.Secret) (Report, error) {
	var r Report
	began := time.Now()
	err := d.with(ctx, b, password, "checking", func(s *session) (err error) {
		if r.Power, err = s.state(ctx); err != nil {
			return err
		}
		if p, ok := s.provider.(selfTester); ok {
			if err := p.ready(ctx); err != nil {
				return err
			}
		}

		if p, ok := s.provider.(inspector); ok {
			if err := p.inspect(ctx, &r); err != nil {
				return err
			}
		}

		if !b.Capabilities().BootDevice {
			r.Boot = Unknown
			return nil
		}

		over, err := s.override(ctx)
		if blind := (blindError{}); errors.As(err, &blind) {
			r.Boot = Unknown
			return nil
		}
		if err != nil {
			return err
		}
		r.Boot = describe(over)
		return nil
	})

	r.Took = time.Since(began)
	return r, err
}
