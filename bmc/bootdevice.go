package bmc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// SetBootDevice sets what the machine boots next: pxe, http (UEFI HTTP boot), disk, cdrom, bios or none (the machine's
// own boot order). It succeeds if a read shows the device. If only a flag of the device (persistent, EFI, valid) reads
// back differently, SetBootDevice returns a warning, because some BMCs obey flags that they do not show. But if the
// device is for one start and reads back as persistent, it returns an error: the machine would boot the device at every
// start. fence has the same meaning as for Set.
//
// For a driver that cannot set the boot device, SetBootDevice accepts only two devices: none, and pxe for one start.
// For pxe it returns a warning, because the machine's own boot order must start with the network.
//
// A BMC may forget the device after 60 s, so switch the machine on immediately afterwards.
func (d *Driver) SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret,
	want inventory.BootDevice, fence func(context.Context) error,
) (warning string, err error) {
	if !slices.Contains([]string{"pxe", "http", "disk", "cdrom", "bios", "none"}, want.Device) {
		return "", fmt.Errorf("invalid boot device %q; must be pxe, http, disk, cdrom, bios or none: %w", want.Device,
			inventory.ErrInvalid)
	}

	err = d.with(ctx, b, password, "boot device "+want.Device, func(s *session) (err error) {
		s.fence = fence
		chooser, ok := s.provider.(bootChooser)
		if !ok {
			warning, err = ownBootOrder(want)
			return err
		}
		if want.Persistent && !b.Capabilities().Persistent && want.Device != "none" {
			return fmt.Errorf("the driver %s can set the boot device for one start only: %w", b.Driver,
				inventory.ErrUnsupported)
		}
		warning, err = s.setBootDevice(ctx, chooser, want)
		return err
	})
	return warning, err
}

// ownBootOrder returns the result of SetBootDevice for a driver that cannot set the boot device.
func ownBootOrder(want inventory.BootDevice) (warning string, err error) {
	switch {
	case want.Device == "none":
		return "", nil
	case want.Device == "pxe" && !want.Persistent:
		return "this driver cannot set the boot device; network boot must be first in the machine's own boot order", nil
	}
	return "", fmt.Errorf("this driver cannot set the boot device: %w", inventory.ErrUnsupported)
}

// setBootDevice writes the boot device and reads it back. It returns a warning, or "".
func (s *session) setBootDevice(ctx context.Context, chooser bootChooser, want inventory.BootDevice) (string, error) {
	// Without keepBootFlags, the BMC clears the device after 60 s or at the next power-on. Some BMCs reject this
	// command. That is no error, because the device is read back below.
	if k, ok := s.provider.(flagKeeper); ok {
		err := s.write(ctx, func() error { return k.keepBootFlags(ctx) })
		if err != nil && final(err) && !isUnsupported(err) {
			return "", err
		}
	}

	wrote := s.write(ctx, func() error { return chooser.setBootDevice(ctx, want) })
	if wrote != nil && final(wrote) {
		return "", wrote
	}

	got, err := chooser.readBootDevice(ctx)
	if blind := (blindError{}); errors.As(err, &blind) && wrote == nil {
		if want.Device == "none" {
			return "", nil
		}
		return fmt.Sprintf("boot device %s was set, but cannot be read back: %s", want.Device, blind.why), nil
	}
	switch {
	case err == nil:
	case wrote != nil && wrote.Error() == err.Error(): // twice the same error: return it only once
		return "", err
	default:
		return "", errors.Join(wrote, err)
	}

	if got.Device != want.Device {
		return "", errors.Join(wrote, fmt.Errorf("boot device was set to %s but reads back as %s: %w", want.Device,
			got.Device, inventory.ErrUnsupported))
	}
	if want.Device != "none" && got.Persistent && !want.Persistent {
		return "", fmt.Errorf("boot device %s was set for one start but reads back as persistent: %w", want.Device,
			inventory.ErrUnsupported)
	}
	return s.warnOfBoot(want, got), nil
}

// warnOfBoot returns a warning if got, the boot device that was read back, has other flags than want, or if the BMC
// holds another boot device for a later start. Otherwise it returns "".
func (s *session) warnOfBoot(want, got inventory.BootDevice) string {
	var warnings []string
	if r, ok := s.provider.(flagReader); ok && want.Device != "none" {
		var dropped []string
		if want.Persistent && !got.Persistent {
			dropped = append(dropped, "persistent")
		}
		if want.EFI != got.EFI {
			dropped = append(dropped, "EFI")
		}
		if !r.hasValidFlags() {
			dropped = append(dropped, "valid")
		}
		if len(dropped) > 0 {
			warnings = append(warnings, "without these flags: "+strings.Join(dropped, ", "))
		}
	}

	if r, ok := s.provider.(pendingReader); ok {
		if pending := r.describePending(want.Device); pending != "" {
			warnings = append(warnings, pending)
		}
	}
	if len(warnings) == 0 {
		return ""
	}
	return fmt.Sprintf("boot device %s was read back, but %s", want.Device, strings.Join(warnings, "; "))
}

// describeBoot returns a boot device with its flags, for example "pxe once efi".
func describeBoot(b inventory.BootDevice) string {
	if b.Device == "none" {
		return b.Device
	}
	words := []string{b.Device, "once"}
	if b.Persistent {
		words[1] = "persistent"
	}
	if b.EFI {
		words = append(words, "efi")
	}
	return strings.Join(words, " ")
}
