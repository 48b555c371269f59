package bmc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"

	"github.com/ingotmetal/ingot/inventory"
)

// SetBootDevice chooses what the machine boots next: pxe, disk, cdrom, bios or
// none (its own order). The device that is read back decides; what the BMC
// shows otherwise of the flags (once or persistent, EFI or not, valid) is told
// as a warning, because some BMCs obey flags that they do not show. A one-time
// device that reads back as persistent is an error: the machine would boot it
// at every start. fence is as in Set.
//
// A driver that cannot choose accepts what the machine's own boot order may do as
// well: one network boot, with a warning, and none.
//
// A BMC forgets the device 60 s after it was set: switch on directly
// afterwards.
func (d *Driver) SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret,
	want inventory.BootDevice, fence func(context.Context) error,
) (warning string, err error) {
	if !slices.Contains([]string{"pxe", "disk", "cdrom", "bios", "none"}, want.Device) {
		return "", fmt.Errorf("invalid boot device %q; must be pxe, disk, cdrom, bios or none: %w", want.Device,
			inventory.ErrInvalid)
	}

	err = d.with(ctx, b, password, "boot device "+want.Device, func(s *session) (err error) {
		s.fence = fence
		can := b.Capabilities()
		if !can.BootDevice {
			warning, err = ownBootOrder(want)
			return err
		}
		if want.Persistent && !can.Persistent && want.Device != "none" {
			return fmt.Errorf("the driver %s chooses what boots once only: %w", b.Driver, inventory.ErrUnsupported)
		}
		warning, err = s.setBootDevice(ctx, want)
		return err
	})
	return warning, err
}

// ownBootOrder answers a request for a boot device that the driver cannot choose.
func ownBootOrder(want inventory.BootDevice) (warning string, err error) {
	switch {
	case want.Device == "none":
		return "", nil
	case want.Device == "pxe" && !want.Persistent:
		return "the boot device cannot be chosen, so the machine's own boot order must have the network first", nil
	}
	return "", fmt.Errorf("the boot device cannot be chosen: %w", inventory.ErrUnsupported)
}

func (s *session) override(ctx context.Context) (bmclibbmc.BootDeviceOverride, error) {
	o, err := s.client.GetBootDeviceOverride(ctx)
	return o, s.provider.cause(err)
}

// setBootDevice writes the boot device and reads it back.
func (s *session) setBootDevice(ctx context.Context, want inventory.BootDevice) (string, error) {
	// Otherwise the BMC clears the device 60 s after it was set, or when the
	// machine is switched on. Some refuse this; what was set is read anyway.
	if k, ok := s.provider.(flagKeeper); ok {
		err := s.write(ctx, func() (bool, error) { return true, k.keepBootFlags(ctx) })
		if err != nil && final(err) && !errors.Is(err, inventory.ErrUnsupported) {
			return "", err
		}
	}

	wrote := s.write(ctx, func() (bool, error) {
		return s.client.SetBootDevice(ctx, want.Device, want.Persistent, want.EFI)
	})
	if wrote != nil && final(wrote) {
		return "", wrote
	}

	got, err := s.override(ctx)
	if blind := (blindError{}); errors.As(err, &blind) && wrote == nil {
		if want.Device == "none" {
			return "", nil
		}
		return fmt.Sprintf("boot device %s: %s", want.Device, blind.why), nil
	}
	if err != nil {
		return "", errors.Join(wrote, err)
	}

	if string(got.Device) != want.Device {
		return "", errors.Join(wrote, fmt.Errorf("boot device was set to %s but reads back as %s: %w", want.Device,
			got.Device, inventory.ErrUnsupported))
	}
	if want.Device == "none" {
		return "", nil
	}
	if got.IsPersistent && !want.Persistent {
		return "", fmt.Errorf("boot device %s was set for once but reads back as persistent: %w", want.Device,
			inventory.ErrUnsupported)
	}

	if r, ok := s.provider.(flagReader); ok {
		if dropped := r.dropped(want, got); len(dropped) > 0 {
			return fmt.Sprintf("boot device %s was read back, but not these flags: %s", want.Device,
				strings.Join(dropped, ", ")), nil
		}
	}
	return "", nil
}

func describe(o bmclibbmc.BootDeviceOverride) string {
	if o.Device == bmclibbmc.BootDeviceTypeNone {
		return "none"
	}
	words := []string{string(o.Device), "once"}
	if o.IsPersistent {
		words[1] = "persistent"
	}
	if o.IsEFIBoot {
		words = append(words, "efi")
	}
	return strings.Join(words, " ")
}
