package bmc

import (
	"context"
	"errors"
	"fmt"

	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"

	"github.com/ingotmetal/ingot/inventory"
)

// provider switches one machine during one operation. If the driver's capabilities
// include it, a provider is also a bootChooser or a bmclibbmc.BMCResetter.
type provider interface {
	bmclibbmc.Opener
	bmclibbmc.Closer
	bmclibbmc.PowerStateGetter
	bmclibbmc.PowerSetter
	// Name returns the name for bmclib's errors.
	Name() string
	// cause returns the provider's own error for one that bmclib returned as text.
	cause(error) error
}

// bootChooser is a provider that can set and read the boot device.
type bootChooser interface {
	bmclibbmc.BootDeviceSetter
	bmclibbmc.BootDeviceOverrideGetter
}

// flagReader is a bootChooser that also reads the boot device's flags back.
type flagReader interface {
	// dropped returns the names of the flags that were read back differently.
	dropped(want inventory.BootDevice, got bmclibbmc.BootDeviceOverride) []string
}

// flagKeeper is a provider whose BMC forgets the boot device unless keepBootFlags
// is called.
type flagKeeper interface {
	keepBootFlags(ctx context.Context) error
}

// selfTester is a provider that can check whether its commands would have an effect.
type selfTester interface {
	ready(ctx context.Context) error
}

// blindError means that the provider cannot read what boots next.
type blindError struct{ why string }

func (e blindError) Error() string { return e.why }
func (e blindError) Unwrap() error { return inventory.ErrUnsupported }

// fencedProvider is a provider whose commands write several times. It calls fence immediately
// before each write; nil means that it need not.
type fencedProvider interface {
	guard(fence func(context.Context) error)
}

// link is the state that the commands of one operation share.
type link struct {
	target *target
	// admit is called before each command, and settle with its error.
	admit  func(context.Context) error
	settle func(error)
	// last is the error of the last command. bmclib returns only its text.
	last error
}

// Open does nothing: each command opens its own session.
func (*link) Open(context.Context) error { return nil }

// Close does nothing.
func (*link) Close(context.Context) error { return nil }

func (l *link) cause(err error) error {
	if err != nil && l.last != nil {
		return l.last
	}
	return err
}

// do calls admit, command and settle. It returns the command's error and keeps it in
// last.
func (l *link) do(ctx context.Context, command func() error) error {
	l.last = nil
	if l.admit != nil {
		if l.last = l.admit(ctx); l.last != nil {
			return l.last
		}
	}

	l.last = command()
	if l.settle != nil {
		l.settle(l.last)
	}
	return l.last
}

// cannot returns an inventory.ErrUnsupported and keeps it in last.
func (l *link) cannot(format string, args ...any) error {
	l.last = fmt.Errorf(format+": %w", append(args, inventory.ErrUnsupported)...)
	return l.last
}

func isUnsupported(err error) bool { return errors.Is(err, inventory.ErrUnsupported) }
