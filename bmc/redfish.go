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

// redfish is a provider for a BMC that speaks Redfish (DSP0266). bmclib's client writes, and gofish reads back.
type redfish struct {
	login     *redfishLogin
	transport *redfishTransport
	// wanted is the boot device that was written. Some BMCs set it by a job, after their answer.
	wanted *inventory.BootDevice
	// patience is how long to wait for that job, and step the pause between two reads.
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
		return nil, fmt.Errorf("the BMC has no password: set one: %w", inventory.ErrRefused)
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
		if err == nil && !ok && power != "soft" { // bmclib never confirms soft
			return errUnconfirmed
		}
		return err
	})
}

// setBootDevice sets the boot override. It writes nothing for none if there is no override.
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
			// Only the target changes: some services refuse Once, and a mode might stay in force.
			persistent, efi = now.Persistent, now.EFI
		}
		_, err := s.writer.BootDeviceSet(ctx, word, persistent, efi)
		return err
	})
}

// overrideTargets are the boot devices by their names in Redfish.
var overrideTargets = map[fish.BootSourceOverrideTarget]string{
	"":                                     "none",
	fish.NoneBootSourceOverrideTarget:      "none",
	fish.PxeBootSourceOverrideTarget:       "pxe",
	fish.HddBootSourceOverrideTarget:       "disk",
	fish.CdBootSourceOverrideTarget:        "cdrom",
	fish.BiosSetupBootSourceOverrideTarget: "bios",
	fish.UefiHTTPBootSourceOverrideTarget:  "http",
}

// overrideOf returns the boot override that is in force, or the device none.
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

// readBootDevice reads the boot override. After setBootDevice it reads until the override is
// the one that was set, for as long as a change of power may take. Two reads in a row must show that there is none: so
// does an answer that lacks the override, which a BMC may give while a job changes it.
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

// hasValidFlags returns true, because Redfish marks no flag as invalid.
func (p *redfish) hasValidFlags() bool { return true }

// describePending describes the boot device of the settings object that the last read of the system has found.
func (p *redfish) describePending(want string) string {
	if word := bootWord(p.transport.pending); word != "none" && word != want {
		return "the BMC may use " + word + " at a later start, which " + clip(p.transport.settingsPath) + " holds"
	}
	return ""
}

// resetBMC restarts the BMC, gracefully if it can. The session ends.
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

// lastReset returns when the BMC was last reset, as it writes it, or "" if it does not report it.
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

// inspect reads what bmclib does not offer, and what is odd about the service.
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
		// Not all services have the following, and not all users may read it.
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

// setPassword changes the password of the user's account (DSP0266, ManagerAccount).
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
			err = errors.New("the BMC has only accepted the request")
		}
		return errors.Join(err, res.Body.Close())
	})
}
