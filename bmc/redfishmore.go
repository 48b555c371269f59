package bmc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"
	fish "github.com/stmcginnis/gofish/redfish"

	"github.com/ingotmetal/ingot/inventory"
)

// BmcReset restarts the BMC, gracefully if it can. Redfish has no warm and cold. The session ends.
// It is proven by the time of the BMC's last reset, where the BMC reports it; see restarted.
func (p *redfish) BmcReset(ctx context.Context, _ string) (bool, error) {
	err := p.run(ctx, func() error {
		m, err := p.manager()
		if err != nil {
			return err
		}
		kind := fish.GracefulRestartResetType
		if len(m.SupportedResetTypes) > 0 && !slices.Contains(m.SupportedResetTypes, kind) {
			kind = fish.ForceRestartResetType
		}
		_, err = p.writer.BmcReset(ctx, string(kind))
		return err
	})
	return err == nil, err
}

// manager returns the BMC itself.
func (p *redfish) manager() (*fish.Manager, error) {
	all, err := p.reader.Service.Managers()
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("the BMC lists %d managers, and only one can be used", len(all))
	}
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// lastReset returns when the BMC was last reset, as it writes it, or "" if it does not report it.
func (p *redfish) lastReset(ctx context.Context) (at string, err error) {
	err = p.run(ctx, func() error {
		m, err := p.manager()
		if err == nil {
			at = m.LastResetTime
		}
		return err
	})
	return at, err
}

// SetVirtualMedia inserts the medium at the URL into the virtual CD drive, or ejects it if the URL is
// empty.
func (p *redfish) SetVirtualMedia(ctx context.Context, kind, mediaURL string) (bool, error) {
	err := p.run(ctx, func() error {
		_, err := p.writer.SetVirtualMedia(ctx, kind, mediaURL)
		return err
	})
	return err == nil, err
}

// media returns the URLs of the media in the virtual CD drives; a medium without URL is "unknown".
func (p *redfish) media(ctx context.Context) (inserted []string, err error) {
	err = p.run(ctx, func() (err error) {
		inserted, err = p.inserted()
		return err
	})
	return inserted, err
}

func (p *redfish) inserted() (urls []string, err error) {
	drives, err := p.drives()
	for _, d := range drives {
		if slices.Contains(d.MediaTypes, fish.CDMediaType) && d.Inserted {
			urls = append(urls, cmp.Or(clip(printable(d.Image)), "unknown"))
		}
	}
	return urls, err
}

// drives returns the virtual drives, which are below the manager or, in newer services, below the system.
func (p *redfish) drives() ([]*fish.VirtualMedia, error) {
	if m, err := p.manager(); err == nil {
		if d, err := m.VirtualMedia(); err == nil && len(d) > 0 {
			return d, nil
		}
	}
	s, err := p.system()
	if err != nil {
		return nil, err
	}
	d, err := s.VirtualMedia()
	if err == nil && len(d) == 0 {
		err = errors.New("the BMC has no virtual drive")
	}
	return d, err
}

// inspect reads what bmclib does not offer.
func (p *redfish) inspect(ctx context.Context, r *inventory.BMCReport) error {
	return p.run(ctx, func() error {
		s, err := p.system()
		if err != nil {
			return err
		}
		r.Maker, r.Model, r.Firmware = clip(printable(s.Manufacturer)), clip(printable(s.Model)), clip(printable(s.BIOSVersion))
		if m, err := p.manager(); err == nil {
			r.Controller = clip(printable(m.FirmwareVersion))
		}
		// Not all services have the following, and not all users may read it.
		if b, err := s.SecureBoot(); err == nil && b != nil {
			r.SecureBoot = strings.ToLower(clip(printable(string(b.SecureBootCurrentBoot))))
		}
		r.Sensors = p.sensors()
		r.Media, _ = p.inserted()
		p.transport.cause = nil
		return nil
	})
}

// sensors returns the temperatures and fans of the first chassis that has any.
func (p *redfish) sensors() (out []inventory.BMCReading) {
	all, err := p.reader.Service.Chassis()
	if err != nil {
		return nil
	}
	for _, c := range all {
		t, err := c.Thermal()
		if err != nil || t == nil {
			continue
		}
		for _, x := range t.Temperatures {
			out = append(out, reading(x.Name, float64(x.ReadingCelsius), "Cel", x.Status))
		}
		for _, x := range t.Fans {
			out = append(out, reading(x.Name, float64(x.Reading), string(x.ReadingUnits), x.Status))
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

func reading(name string, value float64, unit string, s common.Status) inventory.BMCReading {
	return inventory.BMCReading{
		Name:   clip(printable(name)),
		Value:  value,
		Unit:   clip(printable(unit)),
		Health: strings.ToLower(string(s.Health)),
	}
}

// mediaReader is a provider that can read what is in the virtual CD drives.
type mediaReader interface {
	media(ctx context.Context) (inserted []string, err error)
}

// SetMedia inserts the image at url into the machine's virtual CD drive, or ejects what is in it if
// url is empty. It succeeds if a read shows it. fence is as in Set.
func (d *Driver) SetMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string,
	fence func(context.Context) error,
) error {
	what := "inserting virtual media"
	if url == "" {
		what = "ejecting virtual media"
	}
	return d.with(ctx, b, password, what, func(s *session) error {
		reader, ok := s.provider.(mediaReader)
		if !ok {
			return fmt.Errorf("the driver %s has no virtual media: %w", b.Driver, inventory.ErrUnsupported)
		}
		is := func(inserted []string) bool {
			return slices.Equal(inserted, []string{url}) || url == "" && len(inserted) == 0
		}
		now, err := reader.media(ctx)
		if err != nil || is(now) {
			return err
		}
		s.fence = fence
		wrote := s.write(ctx, func() (bool, error) { return s.client.SetVirtualMedia(ctx, "CD", url) })
		if wrote != nil && final(wrote) {
			return wrote
		}
		now, err = reader.media(ctx)
		if err != nil || is(now) {
			return err
		}
		return errors.Join(wrote, fmt.Errorf("the virtual drive holds %q after %s: %w", now, what, inventory.ErrUnreachable))
	})
}
