package bmc

import (
	"context"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Check logs in and reads the power state, the boot device and whatever else the driver can report. On AMT, it also
// checks that a boot device would have an effect. It writes nothing to the BMC.
func (d *Driver) Check(ctx context.Context, b inventory.BMC, password inventory.Secret) (inventory.BMCReport, error) {
	var r inventory.BMCReport
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

		r.Boot = Unknown
		p, ok := s.provider.(bootChooser)
		if !ok {
			return nil
		}
		boot, err := p.readBootDevice(ctx)
		if isUnsupported(err) {
			return nil
		}
		if err == nil {
			r.Boot = describeBoot(boot)
		}
		return err
	})

	r.Took = time.Since(began)
	return r, err
}
