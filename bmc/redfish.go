package bmc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"
	"github.com/stmcginnis/gofish"
	fish "github.com/stmcginnis/gofish/redfish"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// redfish is a provider for Redfish (DSP0266). For most writes it uses bmclib, and for reading back it uses gofish.
type redfish struct {
	login     *redfishLogin
	transport *redfishTransport
	// wanted is the boot device that this operation has written. Some BMCs answer first, and apply the device later in
	// a job.
	wanted *inventory.BootDevice
	// patience limits how long to wait for such a job. step is the pause between two reads.
	patience, step time.Duration
}

var (
	_ provider       = (*redfish)(nil)
	_ bootChooser    = (*redfish)(nil)
	_ resetter       = (*redfish)(nil)
	_ resetWitness   = (*redfish)(nil)
	_ flagReader     = (*redfish)(nil)
	_ pendingReader  = (*redfish)(nil)
	_ fencedProvider = (*redfish)(nil)
	_ mediaDrives    = (*redfish)(nil)
	_ inspector      = (*redfish)(nil)
	_ passwordSetter = (*redfish)(nil)
)

func newRedfish(d *Driver, l link, name string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if password.IsZero() {
		return nil, fmt.Errorf("the driver redfish needs a password; set bmc.password of the machine: %w", inventory.ErrRefused)
	}
	t := d.newRedfishTransport(name, b)
	t.admit = l.admit
	login := &redfishLogin{link: l, name: name, bmc: b, password: password, transport: t, logout: d.cfg.logout}
	return &redfish{login: login, transport: t, patience: d.cfg.Hard, step: d.cfg.Step}, nil
}

func (p *redfish) guard(fence func(context.Context) error) { p.transport.fence = fence }

func (p *redfish) close(ctx context.Context) error {
	defer p.transport.http.CloseIdleConnections()
	return p.login.close(ctx)
}

func (p *redfish) readPower(ctx context.Context) (state string, err error) {
	err = p.login.run(ctx, func(s redfishService) (err error) {
		state, err = s.writer.PowerStateGet(ctx)
		return err
	})
	return state, err
}

func (p *redfish) setPower(ctx context.Context, power string) error {
	return p.login.run(ctx, func(s redfishService) error {
		ok, err := s.writer.PowerSet(ctx, power)
		if err == nil && !ok && power != "soft" { // bmclib never returns true for soft
			return errUnconfirmed
		}
		return err
	})
}

// setBootDevice writes the boot override. If the device is none and no override is set, it writes nothing.
func (p *redfish) setBootDevice(ctx context.Context, want inventory.BootDevice) error {
	p.wanted, p.transport.wantedBoot = &want, want.Device
	return p.login.run(ctx, func(s redfishService) error {
		word, persistent, efi := want.Device, want.Persistent, want.EFI
		switch word {
		case "http":
			word = string(bmclibbmc.BootDeviceUefiHTTP)
		case "none":
			system, err := s.system()
			if err != nil {
				return err
			}
			now := overrideOf(system.Boot)
			if now.Device == "none" {
				return nil
			}
			// Remove the override, but keep its other properties: some services reject Once, and a changed mode might
			// stay set.
			persistent, efi = now.Persistent, now.EFI
		}
		_, err := s.writer.BootDeviceSet(ctx, word, persistent, efi)
		return err
	})
}

// overrideTargets maps the names that Redfish gives to boot devices to the names that Ingot uses.
var overrideTargets = map[fish.BootSourceOverrideTarget]string{
	"":                                     "none",
	fish.NoneBootSourceOverrideTarget:      "none",
	fish.PxeBootSourceOverrideTarget:       "pxe",
	fish.HddBootSourceOverrideTarget:       "disk",
	fish.CdBootSourceOverrideTarget:        "cdrom",
	fish.BiosSetupBootSourceOverrideTarget: "bios",
	fish.UefiHTTPBootSourceOverrideTarget:  "http",
}

// overrideOf returns the boot device that the boot override b sets. If b sets no device, it returns the device none.
func overrideOf(b fish.Boot) inventory.BootDevice {
	out := inventory.BootDevice{
		Device:     "unknown",
		Persistent: b.BootSourceOverrideEnabled == fish.ContinuousBootSourceOverrideEnabled,
		EFI:        b.BootSourceOverrideMode == fish.UEFIBootSourceOverrideMode,
	}
	if device, ok := overrideTargets[b.BootSourceOverrideTarget]; ok {
		out.Device = device
	}
	if b.BootSourceOverrideEnabled == fish.DisabledBootSourceOverrideEnabled {
		out.Device = "none"
	}
	return out
}

// readBootDevice reads the boot override. After setBootDevice, it reads until the override is as written, but not
// longer than p.patience. After the device none was written, it requires two reads in a row without an override,
// because a BMC may also leave the override out of an answer while a job changes it.
func (p *redfish) readBootDevice(ctx context.Context) (now inventory.BootDevice, err error) {
	for began, before := time.Now(), ""; ; before = now.Device {
		err = p.login.run(ctx, func(s redfishService) error {
			system, err := s.system()
			if err == nil {
				now = overrideOf(system.Boot)
			}
			return err
		})
		want := p.wanted
		if err != nil || want == nil {
			return now, err
		}
		none := want.Device == "none" && now.Device == "none"
		if none && before != "none" {
			continue
		}
		if none || now.Device == want.Device && now.Persistent == want.Persistent || time.Since(began) >= p.patience {
			return now, nil
		}
		if err := clock.Sleep(ctx, p.step); err != nil {
			return now, err
		}
	}
}

// hasValidFlags always returns true, because Redfish has no mark for invalid flags.
func (p *redfish) hasValidFlags() bool { return true }

// describePending describes the boot device that the settings object held at the last read. It returns "" if this
// device is none or want.
func (p *redfish) describePending(want string) string {
	if word := bootWord(p.transport.pending); word != "none" && word != want {
		return "the BMC may use " + word + " at a later start, because the settings object " + clip(p.transport.settingsPath) +
			" names this device"
	}
	return ""
}

// resetBMC restarts the BMC, gracefully if the BMC supports a graceful restart. The restart ends the session.
func (p *redfish) resetBMC(ctx context.Context) error {
	return p.login.run(ctx, func(s redfishService) error {
		m, err := s.manager()
		if err != nil {
			return err
		}
		kind := fish.GracefulRestartResetType
		if len(m.SupportedResetTypes) > 0 && !slices.Contains(m.SupportedResetTypes, kind) {
			kind = fish.ForceRestartResetType
		}
		_, err = s.writer.BmcReset(ctx, string(kind))
		return err
	})
}

// lastReset returns the time of the BMC's last reset as the BMC writes it, or "" if the BMC does not report it.
func (p *redfish) lastReset(ctx context.Context) (at string, err error) {
	err = p.login.run(ctx, func(s redfishService) error {
		m, err := s.manager()
		if err == nil {
			at = m.LastResetTime
		}
		return err
	})
	return at, err
}

func (p *redfish) media(ctx context.Context) (inserted []string, err error) {
	err = p.login.run(ctx, func(s redfishService) (err error) {
		inserted, err = s.inserted()
		return err
	})
	return inserted, err
}

func (p *redfish) insert(ctx context.Context, url string) error {
	return p.login.run(ctx, func(s redfishService) error {
		if err := s.eject(""); err != nil {
			return err
		}
		_, err := s.writer.SetVirtualMedia(ctx, "CD", url)
		return err
	})
}

func (p *redfish) eject(ctx context.Context, url string) error {
	return p.login.run(ctx, func(s redfishService) error { return s.eject(url) })
}

// inspect sets the fields of r that bmclib cannot read, and lists how the service deviates from the specification.
func (p *redfish) inspect(ctx context.Context, r *inventory.BMCReport) error {
	return p.login.run(ctx, func(s redfishService) error {
		p.transport.inspects = true
		defer func() { p.transport.inspects, r.Odd = false, p.transport.odd }()
		if _, err := gofish.ServiceRoot(s.reader); err != nil {
			return err
		}
		system, err := s.system()
		if err != nil {
			return err
		}
		r.Maker, r.Model, r.Firmware = clip(system.Manufacturer), clip(system.Model), clip(system.BIOSVersion)
		if m, err := s.manager(); err == nil {
			r.Controller = clip(m.FirmwareVersion)
		}
		// The resources below are optional: not every service has them, and not every user may read them.
		if b, err := system.SecureBoot(); err == nil && b != nil {
			r.SecureBoot = strings.ToLower(clip(string(b.SecureBootCurrentBoot)))
		}
		r.Sensors = s.sensors()
		inserted, _ := s.inserted()
		r.Media = clipped(inserted)
		p.transport.cause = nil
		return nil
	})
}

// setPassword changes the password of the user that is logged in (DSP0266, ManagerAccount).
func (p *redfish) setPassword(ctx context.Context, next inventory.Secret) error {
	return p.login.run(ctx, func(s redfishService) error {
		account, err := s.account()
		if err != nil {
			return err
		}
		read, err := s.reader.Get(account.ODataID)
		if err != nil {
			return err
		}
		header := map[string]string{}
		if etag := read.Header.Get("ETag"); etag != "" {
			header["If-Match"] = etag
		}
		if err := read.Body.Close(); err != nil {
			return err
		}

		res, err := s.reader.PatchWithHeaders(account.ODataID, map[string]string{"Password": next.Reveal()}, header)
		if err != nil {
			return err
		}
		if res.StatusCode == http.StatusAccepted {
			err = errors.New("the BMC accepted the new password but did not confirm that it applies")
		}
		return errors.Join(err, res.Body.Close())
	})
}
