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

// redfish is a provider for Redfish (DSP0266). It mostly writes with bmclib's client, and reads back with gofish.
type redfish struct {
	login     *redfishLogin
	transport *redfishTransport
	// wanted is the boot device that was written. Some BMCs apply it in a job after they have answered.
	wanted *inventory.BootDevice
	// patience is how long to wait for such a job, and step the pause between two reads.
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
		if err == nil && !ok && power != "soft" { // for soft, bmclib never returns true
			return errUnconfirmed
		}
		return err
	})
}

// setBootDevice writes the boot override. For the device none, it writes nothing if no override is set.
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
			// Change only the target: some services reject Once, and a changed mode might stay set.
			persistent, efi = now.Persistent, now.EFI
		}
		_, err := s.writer.BootDeviceSet(ctx, word, persistent, efi)
		return err
	})
}

// overrideTargets maps Redfish's names of boot devices to those of Ingot.
var overrideTargets = map[fish.BootSourceOverrideTarget]string{
	"":                                     "none",
	fish.NoneBootSourceOverrideTarget:      "none",
	fish.PxeBootSourceOverrideTarget:       "pxe",
	fish.HddBootSourceOverrideTarget:       "disk",
	fish.CdBootSourceOverrideTarget:        "cdrom",
	fish.BiosSetupBootSourceOverrideTarget: "bios",
	fish.UefiHTTPBootSourceOverrideTarget:  "http",
}

// overrideOf returns the boot device that a boot override sets; the device is none if it sets none.
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

// readBootDevice reads the boot override. After setBootDevice, it repeats the read until it shows the override that
// was written, for at most p.patience. After writing the device none, it requires two consecutive reads without an
// override, because a BMC may also omit the override from an answer while a job changes it.
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

// hasValidFlags always returns true, because Redfish does not mark flags as invalid.
func (p *redfish) hasValidFlags() bool { return true }

// describePending describes the boot device that the settings object held at the last read, unless it is none or want.
// "" = none.
func (p *redfish) describePending(want string) string {
	if word := bootWord(p.transport.pending); word != "none" && word != want {
		return "the BMC may use " + word + " at a later start, because " + clip(p.transport.settingsPath) + " requests it"
	}
	return ""
}

// resetBMC restarts the BMC, gracefully if the BMC supports that. The session ends.
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

// lastReset returns the BMC's own text for the time of its last reset, or "" if it does not report it.
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

// inspect reads into r what bmclib does not offer, and the deviations of the service from the specification.
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
		// Not every service has the resources below, and not every user may read them.
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

// setPassword changes the password of the account of the user that is logged in (DSP0266, ManagerAccount).
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
