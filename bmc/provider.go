package bmc

import (
	"context"

	"github.com/ingotmetal/ingot/inventory"
)

// provider controls the power of one machine during one operation. A driver that can do more also implements some of
// the interfaces below.
type provider interface {
	// readPower returns the power state in the BMC's own words, which normalize converts.
	readPower(ctx context.Context) (string, error)
	// setPower requests one change of the power state: on, off, soft or reset.
	setPower(ctx context.Context, power string) error
	// close ends the sessions and connections that the commands have opened.
	close(ctx context.Context) error
}

// bootChooser is a provider that can set and read the boot device.
type bootChooser interface {
	setBootDevice(ctx context.Context, want inventory.BootDevice) error
	// readBootDevice returns the device none if the BMC has no boot device set. It returns a blindError if the BMC does
	// not report the device.
	readBootDevice(ctx context.Context) (inventory.BootDevice, error)
}

// flagReader is a bootChooser that can also read the flags of the boot device.
type flagReader interface {
	// hasValidFlags reports whether the flags that were last read are marked as valid.
	hasValidFlags() bool
}

// flagKeeper is a provider for a BMC that may forget the boot device, unless keepBootFlags is called before the device
// is set.
type flagKeeper interface {
	keepBootFlags(ctx context.Context) error
}

// pendingReader is a bootChooser for a BMC that may hold another boot device for a later start.
type pendingReader interface {
	// describePending describes the boot device for a later start. It returns "" if there is no such device, or if this
	// device equals want.
	describePending(want string) string
}

// selfTester is a provider that can check whether a boot device would have an effect.
type selfTester interface {
	ready(ctx context.Context) error
}

// inspector is a provider that can add further data to a report.
type inspector interface {
	inspect(ctx context.Context, r *inventory.BMCReport) error
}

// resetter is a provider that can restart the BMC.
type resetter interface {
	resetBMC(ctx context.Context) error
}

// resetWitness is a provider for a BMC that may report when it was last reset.
type resetWitness interface {
	lastReset(ctx context.Context) (at string, err error) // "" = it is not reported
}

// mediaDrives is a provider for a BMC with virtual CD drives.
type mediaDrives interface {
	// media returns the URLs of the inserted media. For a medium without a URL, it returns "unknown".
	media(ctx context.Context) (inserted []string, err error)
	// insert ejects all media and then inserts the image at url.
	insert(ctx context.Context, url string) error
	// eject ejects the medium at url, or all media if url is empty.
	eject(ctx context.Context, url string) error
}

// passwordSetter is a provider that can change the password of the user with which it has logged in.
type passwordSetter interface {
	setPassword(ctx context.Context, next inventory.Secret) error
}

// fencedProvider is a provider whose single command may write several times. It must call fence, the function set by
// guard, immediately before each write; nil = no fence.
type fencedProvider interface {
	guard(fence func(context.Context) error)
}

// link is the state that all commands of one operation share.
type link struct {
	target *target
	// admit is called before each command, and settle after each command with its error. For Redfish, both are called for
	// each log-in instead; admit is also called before a request is sent again to a busy service.
	admit  func(context.Context) error
	settle func(error)
}

// do calls admit, command and settle in this order. If admit returns an error, do returns it and calls nothing else.
// Otherwise it returns the error of command.
func (l *link) do(ctx context.Context, command func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.admit(ctx); err != nil {
		return err
	}
	err := command()
	l.settle(err)
	return err
}
