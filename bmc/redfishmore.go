package bmc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish"
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

// manager returns the BMC itself: the only manager, or that of the system.
func (p *redfish) manager() (*fish.Manager, error) {
	all, err := p.reader.Service.Managers()
	if len(all) > 1 && p.transport.managedBy == nil {
		if _, err := p.system(); err != nil {
			return nil, err
		}
		all, err = p.reader.Service.Managers()
	}
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

// SetVirtualMedia ejects what is in the virtual CD drives, and inserts the medium at the URL into one of
// them unless the URL is empty.
func (p *redfish) SetVirtualMedia(ctx context.Context, kind, mediaURL string) (bool, error) {
	err := p.run(ctx, func() error {
		if err := p.ejectDrives(""); err != nil || mediaURL == "" {
			return err
		}
		_, err := p.writer.SetVirtualMedia(ctx, kind, mediaURL)
		return err
	})
	return err == nil, err
}

func (p *redfish) eject(ctx context.Context, url string) error {
	return p.run(ctx, func() error { return p.ejectDrives(url) })
}

// ejectDrives ejects the medium at url, or all media if url is empty. bmclib ejects one drive only, and takes
// them in random order.
func (p *redfish) ejectDrives(url string) error {
	drives, err := p.drives()
	for _, d := range drives {
		if holdsCD(d) && (url == "" || url == d.Image) {
			err = errors.Join(err, d.EjectMedia())
		}
	}
	return err
}

// holdsCD reports whether there is a medium in a drive for CDs, or in one whose kind is unknown.
func holdsCD(d *fish.VirtualMedia) bool {
	other := slices.ContainsFunc(d.MediaTypes, func(kind fish.VirtualMediaType) bool {
		return kind == fish.DVDMediaType || kind == fish.FloppyMediaType || kind == fish.USBStickMediaType
	})
	return d.Inserted && (slices.Contains(d.MediaTypes, fish.CDMediaType) || !other)
}

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
		if holdsCD(d) {
			urls = append(urls, cmp.Or(d.Image, "unknown"))
		}
	}
	return urls, err
}

// clipped returns texts of a BMC as they may be shown.
func clipped(texts []string) []string {
	texts = slices.Clone(texts)
	for i, t := range texts {
		texts[i] = clip(t)
	}
	return texts
}

// drives returns the virtual drives in the order of their paths. They are below the manager or, in newer
// services, below the system.
func (p *redfish) drives() (out []*fish.VirtualMedia, err error) {
	defer func() {
		slices.SortFunc(out, func(a, b *fish.VirtualMedia) int { return cmp.Compare(a.ODataID, b.ODataID) })
	}()
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

// inspect reads what bmclib does not offer, and what is odd about the service.
func (p *redfish) inspect(ctx context.Context, r *inventory.BMCReport) error {
	return p.run(ctx, func() error {
		p.transport.inspects = true
		defer func() { p.transport.inspects, r.Odd = false, p.transport.odd }()
		if _, err := gofish.ServiceRoot(p.reader); err != nil {
			return err
		}
		s, err := p.system()
		if err != nil {
			return err
		}
		r.Maker, r.Model, r.Firmware = clip(s.Manufacturer), clip(s.Model), clip(s.BIOSVersion)
		if m, err := p.manager(); err == nil {
			r.Controller = clip(m.FirmwareVersion)
		}
		// Not all services have the following, and not all users may read it.
		if b, err := s.SecureBoot(); err == nil && b != nil {
			r.SecureBoot = strings.ToLower(clip(string(b.SecureBootCurrentBoot)))
		}
		r.Sensors = p.sensors()
		inserted, _ := p.inserted()
		r.Media = clipped(inserted)
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
		Name:   clip(name),
		Value:  value,
		Unit:   clip(unit),
		Health: strings.ToLower(string(s.Health)),
	}
}

// mediaDrives is a provider of virtual CD drives.
type mediaDrives interface {
	// media returns the URLs of the media in the drives; a medium without URL is "unknown".
	media(ctx context.Context) (inserted []string, err error)
	// eject ejects the medium at url.
	eject(ctx context.Context, url string) error
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
	is := func(inserted []string) bool {
		return slices.Equal(inserted, []string{url}) || url == "" && len(inserted) == 0
	}
	return d.with(ctx, b, password, what, func(s *session) error {
		s.fence = fence
		_, err := s.changeMedia(ctx, b.Driver, is, func(mediaDrives) (bool, error) { return s.client.SetVirtualMedia(ctx, "CD", url) })
		return err
	})
}

// EjectMedia ejects the medium at url from the machine's virtual CD drives, and no other. It reports whether a
// drive held it, and succeeds if a read shows that none does. fence is as in Set.
func (d *Driver) EjectMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string,
	fence func(context.Context) error,
) (ejected bool, err error) {
	gone := func(inserted []string) bool { return !slices.Contains(inserted, url) }
	err = d.with(ctx, b, password, "ejecting virtual media", func(s *session) (err error) {
		s.fence = fence
		ejected, err = s.changeMedia(ctx, b.Driver, gone, func(p mediaDrives) (bool, error) { return true, p.eject(ctx, url) })
		return err
	})
	return ejected, err
}

// changeMedia changes what is in the virtual CD drives unless two reads show it as wanted already, and reads it back.
func (s *session) changeMedia(ctx context.Context, driver string, wanted func(inserted []string) bool,
	change func(mediaDrives) (bool, error),
) (changed bool, err error) {
	drives, ok := s.provider.(mediaDrives)
	if !ok {
		return false, fmt.Errorf("the driver %s has no virtual media; redfish has: %w", driver, inventory.ErrUnsupported)
	}
	now, err := drives.media(ctx)
	if err == nil && wanted(now) {
		now, err = drives.media(ctx) // as in turn
	}
	if err != nil || wanted(now) {
		return false, err
	}
	wrote := s.write(ctx, func() (bool, error) { return change(drives) })
	if wrote != nil && final(wrote) {
		return false, wrote
	}
	for began := time.Now(); ; {
		now, err = drives.media(ctx)
		if err != nil || wanted(now) {
			return err == nil, err
		}
		if wrote != nil || time.Since(began) >= s.d.cfg.Hard { // a BMC may insert by a task, after its answer
			break
		}
		if err := s.d.cfg.sleep(ctx, s.d.cfg.Step); err != nil {
			return false, err
		}
	}
	return false, errors.Join(wrote, fmt.Errorf("the virtual drives hold %q: %w", clipped(now), inventory.ErrUnreachable))
}
