package bmc

import (
	"context"
	"errors"
	"fmt"

	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"

	"github.com/ingotmetal/ingot/inventory"
)

// provider is one way to switch a machine, for one operation on one machine. Where
// the driver's capabilities say so, it is a bootChooser and a
// bmclibbmc.BMCResetter, too.
type provider interface {
	bmclibbmc.Opener
	bmclibbmc.Closer
	bmclibbmc.PowerStateGetter
	bmclibbmc.PowerSetter
	// Name names it in bmclib's errors.
	Name() string
	// cause returns the provider's own error in place of bmclib's text of it.
	cause(error) error
}

// bootChooser is a provider that can choose what boots next.
type bootChooser interface {
	bmclibbmc.BootDeviceSetter
	bmclibbmc.BootDeviceOverrideGetter
}

// flagReader is a bootChooser that reads flags of the boot device back, too.
type flagReader interface {
	// dropped names the flags that differ from what was read back.
	dropped(want inventory.BootDevice, got bmclibbmc.BootDeviceOverride) []string
}

// flagKeeper is a provider whose BMC has to be asked not to forget a boot device.
type flagKeeper interface {
	keepBootFlags(ctx context.Context) error
}

// selfTester is a provider that can check whether its commands would have an effect.
type selfTester interface {
	ready(ctx context.Context) error
}

// blindError is that of a provider that cannot read what boots next.
type blindError struct{ why string }

func (e blindError) Error() string { return e.why }
func (e blindError) Unwrap() error { return inventory.ErrUnsupported }

// link is what the commands of an operation have in common.
type link struct {
	// admit is called before each command, and settle with its error.
	admit  func(context.Context) error
	settle func(error)
	// last is the error of the last command: bmclib turns errors into texts.
	last error
}

// Open has nothing to open: each command opens its own session.
func (*link) Open(context.Context) error { return nil }

// Close has nothing to close.
func (*link) Close(context.Context) error { return nil }

func (l *link) cause(err error) error {
	if err != nil && l.last != nil {
		return l.last
	}
	return err
}

// do carries out one command.
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

// cannot makes an inventory.ErrUnsupported the error of the command.
func (l *link) cannot(format string, args ...any) error {
	l.last = fmt.Errorf(format+": %w", append(args, inventory.ErrUnsupported)...)
	return l.last
}

func isUnsupported(err error) bool { return errors.Is(err, inventory.ErrUnsupported) }
